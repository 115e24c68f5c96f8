#include "threads.h"

#include <atomic>
#include <memory>
#include <new>
#include <thread>

#include "float_mode.h"

namespace jaxdml {
namespace {

constexpr int64_t kWorthAThread = 1 << 19;  // multiplications that justify waking another thread
constexpr int kSpins = 1000;                // pauses before a waiting thread yields its core; most items take less time

// A parallel loop. The caller and the helper threads claim items one by one from the counter `next`. A shared_ptr owns
// the job, so a helper that starts after the call has returned can still read the counters. Such a helper claims no
// item, and does not touch `context`, which is no longer valid.
//
// - Each item runs exactly once, because `next` yields each number once.
// - There is no deadlock: the caller waits only for items that helpers have claimed, and helpers never wait.
// - The caller sees all results: a worker increments `done` with release order after each item, and the caller reads
//   `done` with acquire order. The caller returns only when all items are done, so no helper is inside an item.
struct Job {
  Pool::Task task;
  const void* context;
  int64_t count;
  std::atomic<int64_t> next{0}, done{0}, workers{0};

  void work() {
    int64_t item = next.fetch_add(1, std::memory_order_relaxed);
    if (item >= count) return;
    const FloatMode mode;
    const int64_t worker = workers.fetch_add(1, std::memory_order_relaxed);
    for (; item < count; item = next.fetch_add(1, std::memory_order_relaxed)) {
      task(context, item, worker);
      done.fetch_add(1, std::memory_order_release);
    }
  }
};

// Lets the other hardware threads of the core run.
inline void pause() {
#ifdef __aarch64__
  asm volatile("yield");
#else
  _mm_pause();
#endif
}

void run(const Pool& pool, int64_t count, Pool::Task task, const void* context) {
  const int64_t threads = pool.threads < count ? pool.threads : count;
  if (threads <= 1) {
    for (int64_t item = 0; item < count; item++) task(context, item, 0);
    return;
  }
  auto* handle = static_cast<xla::ffi::ThreadPool*>(pool.handle);
  const auto job = std::make_shared<Job>();
  job->task = task;
  job->context = context;
  job->count = count;
  try {
    for (int64_t i = 1; i < threads; i++) handle->Schedule([job] { job->work(); });
  } catch (const std::bad_alloc&) {
    // Continue with the helpers that were scheduled.
  }
  job->work();
  // Helpers finish their last items. Another process may occupy a helper's core. Yielding lets that helper run on this
  // core.
  for (int spins = 0; job->done.load(std::memory_order_acquire) < count; spins++)
    if (spins < kSpins)
      pause();
    else
      std::this_thread::yield();
}

}  // namespace

FloatMode::FloatMode() : saved_(float_mode()) { set_float_mode((saved_ & ~kRounding) | kFlushes); }
FloatMode::~FloatMode() { set_float_mode(saved_); }

Pool pool_of(xla::ffi::ThreadPool& threads, int64_t multiplications) {
  const int64_t most = multiplications / kWorthAThread + 1, number = threads.num_threads();
  const int64_t all = number < 1 ? 1 : number;  // XLA returns 0 if the number is unknown
  return {all < most ? all : most, run, &threads};
}

}  // namespace jaxdml
