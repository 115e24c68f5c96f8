// Tests the threads that wait for the next parallel loop (see threads.cc), without XLA.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <thread>

#include "kernels.h"
#include "thread_pool.h"
#include "threads.h"

namespace jaxdml::test {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kThreads = 3, kItems = 64;
// Of trials. Other processes may occupy the cores meanwhile.
constexpr auto kTrials = std::chrono::seconds(2), kLongest = std::chrono::seconds(20);

constexpr Clock::duration kSoon = std::chrono::microseconds(kItems + 60);  // an item takes one microsecond

// Runs a loop of kItems items on all threads. Returns whether each item ran once.
bool loop(ThreadPool& threads) {
  const Pool pool = pool_of(threads, int64_t(1) << 40);
  std::atomic<int64_t> ran[kItems] = {};
  const auto task = [](const void* context, int64_t item, int64_t) {
    static_cast<std::atomic<int64_t>*>(const_cast<void*>(context))[item]++;
    for (const auto end = Clock::now() + std::chrono::microseconds(1); Clock::now() < end;) continue;
  };
  pool.run(pool, kItems, task, ran);
  return std::all_of(ran, ran + kItems, [](const auto& times) { return times == 1; });
}

// Whether waiting threads take loops, but at most half of the threads wait: some loops are not scheduled for each of
// the other threads, and each is scheduled for those that may not wait.
bool take_loops() {
  ThreadPool threads(kThreads);
  bool is_taken = false;
  const auto start = Clock::now();
  while (Clock::now() < start + (is_taken ? kTrials : kLongest)) {
    const int64_t before = threads.scheduled();
    if (!loop(threads)) return false;
    const int64_t scheduled = threads.scheduled() - before;
    if (scheduled < kThreads - 1 - kThreads / 2) return false;
    is_taken |= scheduled < kThreads - 1;
    std::this_thread::sleep_for(std::chrono::microseconds(20));  // so that several threads begin to wait
  }
  return is_taken;
}

// Whether a thread that takes loops returns to the pool now and then.
bool take_turns() {
  ThreadPool threads(2);
  const auto start = Clock::now();
  while (Clock::now() < start + std::chrono::milliseconds(50))
    if (!loop(threads)) return false;
  return threads.scheduled() >= 10;
}

// Whether a caller does not wait for other loops if the pool runs its tasks at once.
bool callers_return() {
  ThreadPool threads(kThreads, true);
  auto least = Clock::duration::max();
  for (const auto end = Clock::now() + kLongest; Clock::now() < end && least > kSoon;) {
    const auto start = Clock::now();
    if (!loop(threads)) return false;
    least = std::min(least, Clock::now() - start);
  }
  return least <= kSoon;
}

// Whether loops by several callers and pools at once are right, and pools may end while their threads wait.
bool share_seats() {
  std::atomic<bool> is_right{true};
  const auto call = [&] {
    for (int i = 0; i < 20; i++) {
      ThreadPool threads(kThreads);
      for (int j = 0; j < 20; j++)
        if (!loop(threads)) is_right = false;
    }
  };
  std::thread first(call), second(call);
  first.join();
  second.join();
  return is_right;
}

int run_all() {
  const struct {
    const char* what;
    bool (*test)();
  } tests[] = {
      {"waiting threads take loops, and half of the threads do not wait", take_loops},
      {"waiting threads return to the pool", take_turns},
      {"callers do not wait", callers_return},
      {"callers and pools share waiting threads", share_seats},
  };
  for (const auto& each : tests) {
    const bool is_right = each.test();
    printf("%s: %s\n", each.what, is_right ? "right" : "WRONG");
    if (!is_right) return 1;
  }
  return 0;
}

}  // namespace
}  // namespace jaxdml::test

int main() { return jaxdml::test::run_all(); }
