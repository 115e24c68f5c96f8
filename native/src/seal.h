// The seal of packed weights, by which handlers detect weights that were changed after packing.
//
// Packed weights are a leaf of a pytree, and users map functions (the mean of two models, a mask, a cast) over the
// leaves of pytrees. The results are no longer packed weights. A seal has
//   - the mark of the kernels' layout,
//   - all 256 byte values, so that any bytewise function other than the identity changes the seal,
//   - a fingerprint of the weights, which detects masks and functions of several models' bytes. The fingerprint samples
//     2 KiB of large weights, so that a check is cheap.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels.h"

namespace jaxdml {

constexpr int64_t kFingerprintAt = 8, kValuesAt = 64;
static_assert(kValuesAt + 256 == kSealBytes, "the seal ends with the 256 values of a byte");

class Fingerprint {
 public:
  explicit Fingerprint(uint64_t start) {
    for (uint64_t& lane : lanes_) lane = start++;
  }
  void add(const uint8_t* chunk, int64_t bytes) {  // at most 64
    uint8_t copy[kLanes * sizeof(uint64_t)] = {};
    if (bytes < int64_t(sizeof copy)) chunk = static_cast<const uint8_t*>(std::memcpy(copy, chunk, size_t(bytes)));
    for (int i = 0; i < kLanes; i++) {  // the words go from memory to registers: a copy of a whole chunk takes longer
      uint64_t word;
      std::memcpy(&word, chunk + i * int64_t(sizeof word), sizeof word);
      lanes_[i] = (lanes_[i] ^ word) * kOdd;
    }
  }
  uint64_t value() const {
    uint64_t all = 0;
    for (const uint64_t lane : lanes_) all = ((all ^ lane ^ lane >> 32) + 1) * kOdd;
    return all;
  }

 private:
  static constexpr int kLanes = 8;  // of 8 bytes; their multiplications are independent, so that they overlap
  static constexpr uint64_t kOdd = 0x9E3779B97F4A7C15u;

  uint64_t lanes_[kLanes];
};

inline uint64_t fingerprint(const uint8_t* packed, int64_t bytes) {
  constexpr int64_t kChunk = 64, kMostChunks = 32;
  const int64_t size = bytes - kSealBytes, all = (size + kChunk - 1) / kChunk;
  Fingerprint of(static_cast<uint64_t>(bytes));
  const int64_t chunks = all < kMostChunks ? all : kMostChunks;
  for (int64_t i = 0; i < chunks; i++) {
    const int64_t at = i * all / chunks * kChunk;  // evenly spaced
    of.add(packed + kSealBytes + at, size - at < kChunk ? size - at : kChunk);
  }
  return of.value();
}

// Completes the seal of packed weights that begin with the mark.
inline void seal(uint8_t* packed, int64_t bytes) {
  for (int i = 0; i < 256; i++) packed[kValuesAt + i] = uint8_t(i);
  const uint64_t value = fingerprint(packed, bytes);
  std::memcpy(packed + kFingerprintAt, &value, sizeof value);
}

// Whether weights are unchanged since they were packed, in the layout of the kernels with this mark.
inline bool is_sealed(const uint8_t* packed, int64_t bytes, int32_t mark) {
  if (std::memcmp(packed, &mark, sizeof mark)) return false;
  int differs = 0;
  for (int i = 0; i < 256; i++) differs |= packed[kValuesAt + i] ^ i;
  const uint64_t value = fingerprint(packed, bytes);
  return !differs && !std::memcmp(packed + kFingerprintAt, &value, sizeof value);
}

}  // namespace jaxdml
