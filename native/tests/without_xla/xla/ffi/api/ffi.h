// The thread pool, the only part of XLA that threads.cc uses. With it, random_shapes runs threads.cc without XLA.
#pragma once

#include "thread_pool.h"

namespace xla::ffi {

using ThreadPool = jaxdml::test::ThreadPool;

}  // namespace xla::ffi
