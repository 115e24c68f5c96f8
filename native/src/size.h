// Arithmetic on sizes that a caller chose. Overflow is detected, not wrapped.
#pragma once

#include <cstdint>

namespace jaxdml {

// A number from 0 to 2**62 - 1, or invalid. Negative and larger numbers are invalid, and so is arithmetic with an
// invalid size. Comparisons with an invalid size are false, so that a check by == or < fails.
class Size {
 public:
  constexpr Size(int64_t value) : value_(value >= 0 && value >> 62 == 0 ? value : kNone) {}

  constexpr bool is_size() const { return value_ != kNone; }
  constexpr int64_t number() const { return value_; }  // -1 if invalid

  friend constexpr Size operator+(Size x, Size y) { return x.is_size() && y.is_size() ? x.value_ + y.value_ : kNone; }
  friend constexpr Size operator*(Size x, Size y) {
    int64_t product = kNone;
    return x.is_size() && y.is_size() && !__builtin_mul_overflow(x.value_, y.value_, &product) ? product : kNone;
  }
  friend constexpr bool operator==(Size x, Size y) { return x.is_size() && x.value_ == y.value_; }
  friend constexpr bool operator<(Size x, Size y) { return x.is_size() && y.is_size() && x.value_ < y.value_; }

 private:
  static constexpr int64_t kNone = -1;

  int64_t value_;
};

}  // namespace jaxdml
