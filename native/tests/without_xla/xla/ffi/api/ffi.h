// The only part of XLA that threads.cc uses, a thread pool. With it, random_shapes runs the real threads.cc without
// XLA.
#pragma once

#include "thread_pool.h"

namespace xla::ffi {

using ThreadPool = jaxdml::test::ThreadPool;

}  // namespace xla::ffi
