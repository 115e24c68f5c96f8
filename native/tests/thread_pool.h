// A thread pool in place of XLA's.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace jaxdml::test {

class ThreadPool {
 public:
  // With `runs_at_once`, Schedule itself runs the task, as XLA's pool does if its queue is full.
  explicit ThreadPool(int64_t threads, bool runs_at_once = false) : runs_at_once_(runs_at_once) {
    for (int64_t i = 0; i < threads; i++) threads_.emplace_back([this] { work(); });
  }
  ~ThreadPool() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      is_over_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  template <class F>
  void Schedule(F&& f) {
    if (runs_at_once_) return f();
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      waiting_.emplace_back(std::forward<F>(f));
      scheduled_++;
    }
    changed_.notify_one();
  }
  int64_t num_threads() const { return int64_t(threads_.size()); }
  // The number of tasks so far.
  int64_t scheduled() const { return scheduled_; }

 private:
  void work() {
    for (;;) {
      std::function<void()> task;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        changed_.wait(lock, [this] { return is_over_ || !waiting_.empty(); });
        if (waiting_.empty()) return;
        task = std::move(waiting_.front());
        waiting_.pop_front();
      }
      task();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> waiting_;
  const bool runs_at_once_;
  bool is_over_ = false;
  std::atomic<int64_t> scheduled_{0};
  std::vector<std::thread> threads_;
};

}  // namespace jaxdml::test
