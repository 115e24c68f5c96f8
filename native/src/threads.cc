#include "threads.h"

#include <atomic>
#include <chrono>
#include <new>
#include <thread>

#include "float_mode.h"

namespace jaxdml {
namespace {

constexpr int64_t kWorthAThread = 1 << 19;  // multiplications that justify another thread
constexpr int kSpins = 1000;                // pauses before a waiting thread yields its core; most items take less time

using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;
constexpr Clock::duration kWait = microseconds(100);       // how long a helper waits for the next loop
constexpr Clock::duration kTurn = microseconds(2000);      // after this time, a helper returns to XLA's pool
constexpr Clock::duration kLost = microseconds(500);       // a waiting helper that is not run for so long lost its core
constexpr Clock::duration kShared = microseconds(100000);  // for so long after that, no helper waits

// A parallel loop. The caller and the helper threads claim items one by one from the counter `next`. The last owner
// deletes the loop, so a helper that starts after the call has returned can still read the counters. Such a helper
// claims no item, and does not touch `context`, which is no longer valid.
//
// - Each item runs exactly once, because `next` yields each number once.
// - There is no deadlock: the caller waits only for items that helpers have claimed, and helpers do not wait while they
//   compute an item.
// - The caller sees all results: a worker increments `done` with release order after each item, and the caller reads
//   `done` with acquire order. The caller returns only when all items are done, so no helper is inside an item.
struct Loop {
  Pool::Task task;
  const void* context;
  int64_t count;
  std::atomic<int64_t> next{0}, done{0}, workers{0}, owners{1};

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
  void release() {
    if (owners.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
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

// Waking a thread of XLA's pool may take longer than a loop. A helper therefore waits for the next loop in a seat
// before it returns to the pool. A caller gives its loop to helpers in seats first. A helper that waits cannot run
// XLA's tasks, so at most half of a pool's threads wait.
struct alignas(64) Seat {
  enum : uintptr_t { kEmpty, kWaiting };  // every other state is the address of a loop for the waiting helper
  std::atomic<uintptr_t> state{kEmpty};
};
constexpr int64_t kSeats = 32;
Seat seats[kSeats];

// Gives the loop to a helper that waits, if there is one.
bool give(Loop* loop, Seat& seat) {
  uintptr_t waiting = Seat::kWaiting;
  if (seat.state.load(std::memory_order_relaxed) != waiting) return false;
  loop->owners.fetch_add(1, std::memory_order_relaxed);
  if (seat.state.compare_exchange_strong(waiting, reinterpret_cast<uintptr_t>(loop), std::memory_order_acq_rel))
    return true;
  loop->owners.fetch_sub(1, std::memory_order_relaxed);
  return false;
}

// Until when no helper waits. A helper that waits uses up its share of a core that another process needs, too, and then
// loses the core for milliseconds in the middle of an item.
std::atomic<Clock::rep> shared_until{0};

// Waits in a seat. Returns the loop that a caller gives, or null after kWait.
Loop* received(Seat& seat, Clock::time_point now) {
  const Clock::time_point end = now + kWait;
  uintptr_t state = Seat::kWaiting;
  while (state == Seat::kWaiting && now < end) {
    for (int i = 0; i < 16 && state == Seat::kWaiting; i++) {
      pause();
      state = seat.state.load(std::memory_order_acquire);
    }
    const Clock::time_point before = now;
    now = Clock::now();
    if (now - before < kLost) continue;
    shared_until.store((now + kShared).time_since_epoch().count(), std::memory_order_relaxed);
    break;
  }
  if (state == Seat::kWaiting && seat.state.compare_exchange_strong(state, Seat::kEmpty, std::memory_order_acq_rel))
    return nullptr;
  seat.state.store(Seat::kEmpty, std::memory_order_relaxed);
  return reinterpret_cast<Loop*>(state);
}

// The next loop for a helper; null if no helper may wait now, if all seats are taken, or if no loop comes. `threads` is
// the size of the pool.
Loop* next_loop(int64_t threads) {
  const Clock::time_point now = Clock::now();
  if (now.time_since_epoch().count() < shared_until.load(std::memory_order_relaxed)) return nullptr;
  for (int64_t i = 0; i < kSeats && (i + 1) * 2 <= threads; i++) {
    uintptr_t empty = Seat::kEmpty;
    if (seats[i].state.compare_exchange_strong(empty, Seat::kWaiting, std::memory_order_acq_rel))
      return received(seats[i], now);
  }
  return nullptr;
}

// Helps with the loop, and then with loops that come soon. Returns to the pool, which has other tasks, after kTurn.
void help(Loop* loop, int64_t threads) {
  const Clock::time_point end = Clock::now() + kTurn;
  while (loop) {
    loop->work();
    loop->release();
    loop = Clock::now() < end ? next_loop(threads) : nullptr;
  }
}

void run(const Pool& pool, int64_t count, Pool::Task task, const void* context) {
  int64_t helpers = (pool.threads < count ? pool.threads : count) - 1;
  if (helpers <= 0) {
    for (int64_t item = 0; item < count; item++) task(context, item, 0);
    return;
  }
  auto* handle = static_cast<xla::ffi::ThreadPool*>(pool.handle);
  const int64_t threads = handle->num_threads();
  const auto caller = std::this_thread::get_id();
  auto* loop = new Loop{task, context, count};
  for (int64_t i = 0; i < kSeats && helpers; i++) helpers -= give(loop, seats[i]);
  try {
    for (; helpers; helpers--) {
      loop->owners.fetch_add(1, std::memory_order_relaxed);
      handle->Schedule([loop, threads, caller] {
        if (std::this_thread::get_id() == caller) return loop->release();  // a full pool runs tasks at once
        help(loop, threads);
      });
    }
  } catch (const std::bad_alloc&) {
    loop->owners.fetch_sub(1, std::memory_order_relaxed);  // continue with the helpers that were scheduled
  }
  loop->work();
  // Helpers finish their last items. Another process may occupy a helper's core. Yielding lets that helper run on this
  // core.
  for (int spins = 0; loop->done.load(std::memory_order_acquire) < count; spins++)
    if (spins < kSpins)
      pause();
    else
      std::this_thread::yield();
  loop->release();
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
