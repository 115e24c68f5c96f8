// Random numbers, and buffers that detect accesses out of bounds.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>

namespace jaxdml::test {

class Random {
 public:
  Random(uint64_t seed, uint64_t number) : bits_(seed * 0x9E3779B97F4A7C15u + number) {}

  int64_t below(int64_t count) { return int64_t(bits_() % uint64_t(count)); }
  int64_t between(int64_t first, int64_t last) { return first + below(last - first + 1); }
  bool chance(int64_t percent) { return below(100) < percent; }
  float fraction() { return float(bits_() >> 40) * 0x1p-24f; }
  void fill(uint8_t* to, int64_t size) {
    for (; size >= 8; to += 8, size -= 8) {
      const uint64_t bits = bits_();
      memcpy(to, &bits, 8);
    }
    const uint64_t bits = bits_();
    memcpy(to, &bits, size_t(size));
  }

 private:
  std::mt19937_64 bits_;
};

// A buffer of exactly `size` random bytes. Some buffers are on the heap, often at odd addresses; AddressSanitizer
// detects accesses outside them. Others are next to an inaccessible page, which also stops masked loads and stores that
// sanitizers miss. The destructor checks that the bytes around the buffer in its block of memory are unchanged.
class Bytes {
 public:
  Bytes(Random& random, int64_t size, int64_t alignment = 1) : size_(size) {
    const int64_t place = random.below(3);
    if (place == 0) {
      const int64_t offset = alignment > 16 || random.chance(30) ? 0 : (2 * random.below(8) + 1) * alignment;
      block_size_ = offset + size;
      void* block;
      if (posix_memalign(&block, size_t(alignment > 16 ? alignment : 16), size_t(block_size_))) abort();
      block_ = static_cast<uint8_t*>(block);
      at_ = block_ + offset;
    } else {
      const int64_t page = sysconf(_SC_PAGESIZE);
      block_size_ = (size + page - 1) / page * page;
      mapped_ = block_size_ + 2 * page;
      void* map = mmap(nullptr, size_t(mapped_), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (map == MAP_FAILED) abort();
      block_ = static_cast<uint8_t*>(map) + page;
      if (block_size_ && mprotect(block_, size_t(block_size_), PROT_READ | PROT_WRITE)) abort();
      at_ = place == 1 ? block_ : block_ + block_size_ - size;
    }
    if (reinterpret_cast<uintptr_t>(at_) % uintptr_t(alignment))
      abort();  // the size must be a multiple of the alignment
    memset(block_, kBeside, size_t(at_ - block_));
    memset(at_, int(random.below(256)), size_t(size));
    memset(at_ + size, kBeside, size_t(block_ + block_size_ - at_ - size));
  }
  ~Bytes() {
    for (const uint8_t* p = block_; p < at_; p++) check(p);
    for (const uint8_t* p = at_ + size_; p < block_ + block_size_; p++) check(p);
    if (mapped_)
      munmap(block_ - (mapped_ - block_size_) / 2, size_t(mapped_));
    else
      free(block_);
  }
  Bytes(const Bytes&) = delete;
  Bytes& operator=(const Bytes&) = delete;

  uint8_t* at() const { return at_; }
  int64_t size() const { return size_; }
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(at_);
  }

 private:
  static constexpr uint8_t kBeside = 0xA5;

  void check(const uint8_t* p) const {
    if (*p == kBeside) return;
    fprintf(stderr, "byte %td of %td bytes was written\n", p - at_, std::ptrdiff_t(size_));
    abort();
  }

  int64_t size_, block_size_, mapped_ = 0;
  uint8_t* block_;
  uint8_t* at_;
};

}  // namespace jaxdml::test
