// The interface of each instruction set: problem structs and a table of functions. It contains no code, so every
// instruction set can include it.
#pragma once

#include <cstdint>

namespace jaxdml {

enum class Type : int32_t { kInt8, kUint8, kInt32 };

// A parameter of a tensor: one value (step 0), or one for each row, column or channel (step 1).
struct Scales {
  const float* at;
  int64_t step;
};
struct ZeroPoints {  // in the tensor's own type
  const uint8_t* at;
  int64_t step;
  bool is_signed;
};

// Runs task(context, item, worker) for each item below `count`; worker is below `threads`.
struct Pool {
  using Task = void (*)(const void* context, int64_t item, int64_t worker);

  int64_t threads;
  void (*run)(const Pool& pool, int64_t count, Task task, const void* context);
  void* handle;
};

// y[m, n] = requantized sum over k of (a[m, k] - a_zero_point[m]) * (b[k, n] - b_zero_point[n]).
struct Matmul {
  int64_t rows, depth, columns;
  const uint8_t* a;
  const uint8_t* b;
  bool is_raw;  // b is not packed, and each problem has its own
  Scales a_scale, b_scale, y_scale;
  ZeroPoints a_zero_point, b_zero_point, y_zero_point;
  void* y;
  Type type;  // of y; int32 is the sum itself
};

struct Filter {
  int64_t outputs, channels, rows, columns, groups;  // channels of one group
  bool is_for_one_call;                              // packed for it, not prepared
};

// y[n, o, :, :] = requantized sum of (x - x_zero_point) * (filter - filter_zero_point[o]), plus bias[o].
struct Convolution {
  Filter filter;
  int64_t batch, height, width, y_height, y_width;
  int64_t stride[2], dilation[2], start[2], end[2];
  const uint8_t* x;
  const uint8_t* packed;
  Scales x_scale, filter_scale, y_scale;
  ZeroPoints x_zero_point, filter_zero_point, y_zero_point;
  const int32_t* bias;  // or null
  void* y;
  Type type;
};

// y = quantized (a - a_zero_point) * a_scale + (b - b_zero_point) * b_scale, element by element.
struct Sum {
  int64_t size;
  const uint8_t* a;
  const uint8_t* b;
  float a_scale, b_scale, y_scale;
  int32_t a_zero_point, b_zero_point, y_zero_point;
  bool a_is_signed, b_is_signed, y_is_signed;
  uint8_t* y;
};

// y = quantized x / scale, element by element.
struct Quantization {
  int64_t size;
  const float* x;
  float scale;
  int32_t zero_point;
  bool is_signed;
  uint8_t* y;
};

// y = (x - zero_point) * scale, element by element.
struct Dequantization {
  int64_t size;
  const uint8_t* x;
  float scale;
  int32_t zero_point;
  bool is_signed;
  float* y;
};

// y[0] and y[1] = the least and the greatest of 0 and the elements of x; NaN if an element is.
struct Range {
  int64_t size;
  const float* x;
  float* y;
};

// y[m] = the sum of the m-th row of x.
struct Rows {
  int64_t rows, depth;
  const uint8_t* x;
  bool is_signed;
  int32_t* y;
};

// The kernels of an instruction set. A call takes several problems of one shape. Scratch memory is the caller's: so
// many bytes as `*_scratch` says, of 64-byte alignment.
struct Kernels {
  const char* name;
  int32_t matrix_mark, filter_mark;  // what packed weights begin with
  int64_t (*matrix_bytes)(int64_t depth, int64_t columns);
  void (*pack_matrix)(const Pool&, const uint8_t* b, bool is_signed, int64_t depth, int64_t columns, uint8_t* packed);
  int64_t (*filter_bytes)(const Filter&);
  void (*pack_filter)(const Pool&, const uint8_t* filter, bool is_signed, const Filter&, uint8_t* packed);
  int64_t most_raw_rows;  // that a product may have with raw weights
  int64_t (*matmul_scratch)(const Matmul*, int64_t count, int64_t threads);
  void (*matmul)(const Pool&, const Matmul*, int64_t count, uint8_t* scratch);
  int64_t (*convolve_scratch)(const Convolution*, int64_t count, int64_t threads);
  void (*convolve)(const Pool&, const Convolution*, int64_t count, uint8_t* scratch);
  void (*add)(const Pool&, const Sum*, int64_t count);
  void (*quantize)(const Pool&, const Quantization*, int64_t count);
  void (*dequantize)(const Pool&, const Dequantization*, int64_t count);
  void (*extremes)(const Pool&, const Range*, int64_t count);
  void (*row_sums)(const Pool&, const Rows*, int64_t count);
};

extern const Kernels kAvx2;
extern const Kernels kAvx512Vnni;
extern const Kernels kAmxInt8;

}  // namespace jaxdml
