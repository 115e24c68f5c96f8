// Parallel execution on XLA's thread pool, and the floating-point mode of its threads.
#pragma once

#include <cstdint>

#include "kernels.h"
#include "xla/ffi/api/ffi.h"

namespace jaxdml {

// Sets rounding to nearest, and flushes subnormal operands and results to zero, on the current thread; the destructor
// restores the previous mode.
class FloatMode {
 public:
  FloatMode();
  ~FloatMode();
  FloatMode(const FloatMode&) = delete;
  FloatMode& operator=(const FloatMode&) = delete;

 private:
  uint64_t saved_;
};

// Returns the pool of a call. The number of threads grows with the number of multiplications: waking a thread takes
// longer than a small piece of work.
Pool pool_of(xla::ffi::ThreadPool& threads, int64_t multiplications);

}  // namespace jaxdml
