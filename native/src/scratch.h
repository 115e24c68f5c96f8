// Scratch memory of a call. Later calls reuse it.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <utility>

#include "size.h"

#ifdef _WIN32
#include <malloc.h>
#endif

namespace jaxdml {

// Windows has no std::aligned_alloc, and needs a separate function to free aligned memory.
inline void* allocate(size_t bytes) {
#ifdef _WIN32
  return _aligned_malloc(bytes, 64);
#else
  return std::aligned_alloc(64, bytes);
#endif
}
inline void release(void* at) {
#ifdef _WIN32
  _aligned_free(at);
#else
  std::free(at);
#endif
}

// A 64-byte aligned scratch block. The destructor keeps the largest blocks of up to 64 MiB, which avoids page faults.
// A call holds up to two blocks: one for weights that are packed for this call, one for the kernel.
//
// An invalid size, the result of an overflow, counts as a failed allocation.
class Scratch {
 public:
  explicit Scratch(Size size) : bytes_(size.number()) {
    const int64_t bytes = bytes_;
    if (bytes <= 0) return;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      for (Block& kept : kept_)
        if (kept.bytes > block_.bytes) std::swap(kept, block_);
    }
    if (block_.bytes >= bytes) return;
    release(block_.at);
    block_.at = static_cast<uint8_t*>(allocate((size_t(bytes) + 63) / 64 * 64));
    block_.bytes = block_.at ? bytes : 0;
  }
  ~Scratch() {
    if (block_.bytes && block_.bytes <= kMostKept) {
      const std::lock_guard<std::mutex> lock(mutex_);
      for (Block& kept : kept_)
        if (kept.bytes < block_.bytes) std::swap(kept, block_);
    }
    release(block_.at);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  uint8_t* at() const { return block_.at; }
  bool is_there() const { return bytes_ == 0 || (bytes_ > 0 && block_.at); }

 private:
  struct Block {
    uint8_t* at;
    int64_t bytes;
  };
  static constexpr int64_t kMostKept = int64_t(64) << 20;
  static inline std::mutex mutex_;
  // The largest blocks; never freed, because XLA's threads may outlive static destructors.
  static inline Block kept_[4];

  int64_t bytes_;
  Block block_ = {};
};

// Adds up sizes if `block` is null; otherwise hands out the parts of the block.
struct Parts {
  uint8_t* block;
  Size used;

  template <class T>
  T* take(Size count) {
    T* const at = block ? reinterpret_cast<T*>(block + used.number()) : nullptr;
    const Size bytes = count * int64_t(sizeof(T)) + 63;
    used = used + (bytes.is_size() ? Size(bytes.number() / 64 * 64) : bytes);
    return at;
  }
};

}  // namespace jaxdml
