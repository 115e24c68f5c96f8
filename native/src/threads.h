// Work shared with XLA's own threads.
#pragma once

#include <cstdint>

#include "kernels.h"
#include "xla/ffi/api/ffi.h"

namespace jaxdml {

// Rounding to nearest and flush-to-zero, on the thread that holds one; what was set before comes back.
class FloatMode {
 public:
  FloatMode();
  ~FloatMode();
  FloatMode(const FloatMode&) = delete;
  FloatMode& operator=(const FloatMode&) = delete;

 private:
  unsigned saved_;
};

// The pool of a call. Little work is done by the caller alone, who is faster than a wake-up.
Pool pool_of(xla::ffi::ThreadPool& threads, int64_t multiplications);

}  // namespace jaxdml
