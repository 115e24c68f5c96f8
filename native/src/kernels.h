// The interface of each instruction set: problem structs and a table of functions. The file contains no code, so the
// sources of every instruction set can include it.
#pragma once

#include <cstdint>

namespace jaxdml {

constexpr int64_t kSealBytes = 320;  // the size of the seal at the start of packed weights; see seal.h

enum class Type : int32_t { kInt8, kUint8, kInt32, kFloat32 };
inline int64_t size_of(Type type) { return type == Type::kInt8 || type == Type::kUint8 ? 1 : 4; }

// A tensor's scales: one for the tensor (step 0), or one for each row, column or channel (step 1).
struct Scales {
  const float* at;
  int64_t step;
};
struct ZeroPoints {  // like Scales; a zero point has the tensor's type
  const uint8_t* at;
  int64_t step;
  bool is_signed;
};

// A thread pool. `run` calls task(context, item, worker) for each item below `count`; worker is below `threads`.
struct Pool {
  using Task = void (*)(const void* context, int64_t item, int64_t worker);

  int64_t threads;
  void (*run)(const Pool& pool, int64_t count, Task task, const void* context);
  void* handle;
};

// y[m, n] = the sum over k of (a[m, k] - a_zero_point[m]) * (b[k, n] - b_zero_point[n]), plus bias[n]: requantized, as
// int32, or as float32: the sum * (a_scale[m] * b_scale[n]), plus bias[n].
struct Matmul {
  int64_t rows, depth, columns;
  const uint8_t* a;
  const uint8_t* b;
  bool is_raw;  // b is not packed, and no other problem uses this b
  Scales a_scale, b_scale, y_scale;
  ZeroPoints a_zero_point, b_zero_point, y_zero_point;
  const int32_t* bias;  // of each column, or the bits of floats if y is float32; null if there is no bias
  void* y;
  Type type;  // y's type; kInt32 stores the sums without requantization
};

struct Filter {
  int64_t outputs, channels, rows, columns, groups;  // `channels` counts the channels of one group
  bool is_for_one_call;                              // the call packs the filter and discards it
};

// y[n, o, :, :] = bias[o] + the sum of (x - x_zero_point) * (filter - filter_zero_point[o]), requantized.
struct Convolution {
  Filter filter;
  int64_t batch, height, width, y_height, y_width;
  int64_t stride[2], dilation[2], start[2], end[2];
  const uint8_t* x;
  const uint8_t* packed;
  Scales x_scale, filter_scale, y_scale;
  ZeroPoints x_zero_point, filter_zero_point, y_zero_point;
  const int32_t* bias;  // null if there is no bias
  void* y;
  Type type;
};

// y = quantize((a - a_zero_point) * a_scale + (b - b_zero_point) * b_scale), elementwise.
struct Sum {
  int64_t size;
  const uint8_t* a;
  const uint8_t* b;
  float a_scale, b_scale, y_scale;
  int32_t a_zero_point, b_zero_point, y_zero_point;
  bool a_is_signed, b_is_signed, y_is_signed;
  uint8_t* y;
};

// y = saturate(round(x / scale) + zero_point), elementwise.
struct Quantization {
  int64_t size;
  const float* x;
  float scale;
  int32_t zero_point;
  bool is_signed;
  uint8_t* y;
  int64_t width = 1;  // bytes of an element of y: 1 or 2
};

// As Quantization, to uint8, for each row of x; scales and zero points are results, too.
struct RowQuantization {
  int64_t rows, depth;
  const float* x;
  uint8_t* y;
  float* scales;
  uint8_t* zero_points;
};

// y = (x - zero_point) * scale, elementwise.
struct Dequantization {
  int64_t size;
  const uint8_t* x;
  int64_t width;  // bytes of an element of x: 1 or 2
  float scale;
  int32_t zero_point;
  bool is_signed;
  float* y;
};

// y[0] and y[1] = the minimum and maximum of 0 and the elements of x; NaN if an element of x is NaN.
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

// y[m] = the mean of the m-th row of x, requantized.
struct Means {
  int64_t rows, depth;
  const uint8_t* x;
  float x_scale, y_scale;
  int32_t x_zero_point, y_zero_point;
  bool x_is_signed, y_is_signed;
  uint8_t* y;
};

// y = the maximum of each window of images [images, height, width]; the least value if a window has only padding.
struct MaxPool {
  int64_t images, height, width, y_height, y_width;
  int64_t window[2], stride[2], dilation[2], start[2];
  const uint8_t* x;
  bool is_signed;
  uint8_t* y;
};

// y = table[x], elementwise. The table has an entry for each integer of x's type, that of the least integer first.
struct LookUp {
  int64_t size;
  const uint8_t* x;
  const uint8_t* table;
  int64_t x_width, y_width;  // bytes of an element: 1 or 2
  bool is_signed;            // x is int8 or int16
  bool has_vbmi;             // the processor has AVX512-VBMI
  uint8_t* y;
};

// y = saturate(round((a - a_zero_point) * (b - b_zero_point) * multiplier + y_zero_point)). Each element of `b`
// multiplies `run` consecutive elements of `a`.
struct Product {
  int64_t size, run;
  const uint8_t* a;
  const uint8_t* b;
  float multiplier;
  int32_t a_zero_point, b_zero_point, y_zero_point;
  bool a_is_signed, b_is_signed, y_is_signed;
  uint8_t* y;
};

// A matrix [columns, depth] of `bits`-bit integers (4 or 8) in blocks of `size` along the depth; block_shape.h has its
// packed form.
struct BlockShape {
  int64_t columns, depth, size;
  int bits, scale_bytes;
  bool has_zero_points;
};
// Integers of 4 or 8 bits in memory, from index `first` on; a byte holds two 4-bit integers.
struct Elements {
  const uint8_t* at;
  int64_t first;
  int bits;
  bool is_signed;
};
// y = (x - zero_points) * scales. If zero_points is null, they are 0 for signed x, and 8 or 128 for unsigned x.
struct BlockDequantization {
  int64_t blocks, size;
  Elements x, zero_points;
  const float* scales;
  float* y;
};
struct BlockMatrix {
  BlockShape shape;
  Elements weights, zero_points;  // [columns, depth], [columns, blocks]
  const uint8_t* scales;          // [columns, blocks]
};

// y = a times a packed matrix, plus bias, which may be null. Elements of `a` are rounded to integers, which are split
// into `planes` int8 planes.
struct BlockProduct {
  BlockShape shape;
  int64_t rows, planes;
  const float* a;
  const uint8_t* packed;
  const float* bias;
  float* y;
};

// An instruction of a program that runs on rows: elementwise functions of one, two and three values, and reductions.
enum class RowCode : int32_t {
  kAbs,
  kNeg,
  kSign,
  kFloor,
  kCeil,
  kRound,
  kSqrt,
  kRsqrt,
  kExp,
  kExp2,
  kExpm1,
  kLogistic,
  kTanh,
  kLog,
  kLog1p,
  kErf,
  kErfc,
  kSquare,
  kIsFinite,
  kNot,
  kToFloat,
  kFloatOfInteger,
  kOnnxruntimeLogistic,
  kOnnxruntimeTanh,
  kAdd,
  kAddIntegers,
  kSteps,
  kSub,
  kMul,
  kDiv,
  kMax,
  kMin,
  kEqual,
  kNotEqual,
  kLess,
  kLessOrEqual,
  kGreater,
  kGreaterOrEqual,
  kAnd,
  kOr,
  kSelect,
  kClamp,
  kSum,
  kLargest,
  kSmallest,
  kCount
};
struct RowInstruction {
  RowCode code;
  int32_t to, from[3];  // slots
};
constexpr int32_t kMostSlots = 64;

// The elements of an operand or a result. Truth values are bytes of 0 and 1. Slots hold integers as int32.
enum class RowType : int32_t { kFloat, kTruth, kInt32, kInt8, kUint8 };

inline bool is_byte(RowType type) { return type != RowType::kFloat && type != RowType::kInt32; }
inline int64_t width_of(RowType type) { return is_byte(type) ? 1 : 4; }

// A tensor that a program reads, or some of its columns. Each extent is 1 or equals the problem's.
struct RowOperand {
  const uint8_t* at;
  const int64_t* extents;  // of all dimensions but the last
  int64_t pitch, first;    // elements of a row, and the first one that the program reads
  RowType type;
  bool is_wide, has_rows;  // whether it has all columns; whether it has more than one row
  bool is_whole;           // whether it has all rows
  bool is_kept;            // whether its slot has the same values in each block of rows
};

// y = the final value of a slot: floats, or steps that are rounded to integers and saturated after the addition of the
// zero point, which the slot `zero_point` has for each row.
struct RowResult {
  uint8_t* y;
  RowType type;  // kFloat, kInt8 or kUint8
  int32_t slot, zero_point;
  bool is_wide;  // whether y has all columns, not one
};

// Initially, slot i holds operand i.
struct RowProgram {
  int64_t rows, columns, rank;  // the rank counts the dimensions that the rows span
  const int64_t* extents;
  int64_t operand_count, instruction_count, result_count, slots;
  const RowOperand* operands;
  const RowInstruction* instructions;
  const RowResult* results;
  bool has_reductions;
};

constexpr int64_t kMostAttentionDepth = 1 << 12;  // the maximum length of a key for which sums of products are exact

// Which of attention's results y is: the sums of values, or scores of one of four stages.
enum class AttentionResult : int32_t { kOutput, kScores, kCapped, kMasked, kWeights, kCount };

// y[batch, heads, rows, width or keys] = attention of queries [batch, heads, rows, depth] to keys [batch, groups, keys,
// depth] and values [batch, groups, keys, width]. The steps of `seen` and `bias` are those of batch, head and row.
struct Attention {
  int64_t batch, heads, groups, rows, keys, depth, width;
  const float *query, *key, *value;
  const uint8_t* seen;  // 0 or 1 for each key; null if each query sees all keys
  const float* bias;    // one for each key; null if there is no bias
  int64_t seen_steps[3], bias_steps[3];
  const float* sink;  // one for each head; null if there are no sinks
  float scale, softcap;
  AttentionResult result;
  float* y;
};

// One direction of an LSTM whose hidden states and weights have 8 bits. The gates are in the order input, output,
// forget, cell. A step multiplies the hidden states of all items, quantized by their range, by the weights. Item b has
// the first lengths[b] of the steps, at most all; they run in reverse order if `is_backward`.
struct Lstm {
  int64_t steps, batch, units;
  bool is_backward, couples_forget;  // couples_forget: the forget gate is 1 minus the input gate
  float clip;                        // the bound of the inputs of activations; infinity if there is none
  const float* gates;                // [steps, batch, 4 * units]: products of x and its weights
  const int32_t* lengths;
  const float *h, *c;      // [batch, units]: the hidden states and the cells' states before the first step
  const float* bias;       // [4 * units]
  const float* peephole;   // [3 * units]; null if there is none
  const uint8_t* weights;  // a packed matrix [units, 4 * units]
  Scales scale;            // of the weights
  ZeroPoints zero_point;
  float* y;                // hidden states: [batch, units] for each step; 0 after the last step of an item
  int64_t y_stride;        // from step to step
  float *last_h, *last_c;  // [batch, units]; last_h is 0 if an item has no steps
};

// The kernels of an instruction set. A call takes `count` problems of one shape. The caller allocates scratch memory
// that is aligned to 64 bytes; `*_scratch` returns its size in bytes.
struct Kernels {
  const char* name;
  int32_t matrix_mark, filter_mark;  // the first bytes of packed weights
  int64_t (*matrix_bytes)(int64_t depth, int64_t columns);
  void (*pack_matrix)(const Pool&, const uint8_t* b, bool is_signed, int64_t depth, int64_t columns, uint8_t* packed);
  int64_t (*filter_bytes)(const Filter&);
  void (*pack_filter)(const Pool&, const uint8_t* filter, bool is_signed, const Filter&, uint8_t* packed);
  int64_t pace;           // this many multiplications by these kernels count as one in pool_of
  int64_t most_raw_rows;  // the maximum number of rows of a product with raw weights
  int64_t (*matmul_scratch)(const Matmul*, int64_t count, int64_t threads);
  void (*matmul)(const Pool&, const Matmul*, int64_t count, uint8_t* scratch);
  int64_t (*convolve_scratch)(const Convolution*, int64_t count, int64_t threads);
  void (*convolve)(const Pool&, const Convolution*, int64_t count, uint8_t* scratch);
  void (*add)(const Pool&, const Sum*, int64_t count);
  void (*quantize)(const Pool&, const Quantization*, int64_t count);
  void (*dequantize)(const Pool&, const Dequantization*, int64_t count);
  void (*quantize_rows)(const Pool&, const RowQuantization&);
  void (*extremes)(const Pool&, const Range*, int64_t count);
  void (*row_sums)(const Pool&, const Rows*, int64_t count);
  void (*means)(const Pool&, const Means*, int64_t count);
  int64_t (*max_pool_scratch)(const MaxPool&, int64_t threads);
  void (*max_pool)(const Pool&, const MaxPool&, uint8_t* scratch);
  void (*look_up)(const Pool&, const LookUp*, int64_t count);
  void (*products)(const Pool&, const Product*, int64_t count);
  int64_t (*row_program_scratch)(const RowProgram&, int64_t threads);
  void (*run_rows)(const Pool&, const RowProgram&, uint8_t* scratch);
  int64_t (*attention_scratch)(const Attention&, int64_t threads);
  void (*attention)(const Pool&, const Attention*, int64_t count, uint8_t* scratch);
  int64_t (*lstm_scratch)(const Lstm&, int64_t threads);
  void (*lstm)(const Pool&, const Lstm*, int64_t count, uint8_t* scratch);
  void (*dequantize_blocks)(const Pool&, const BlockDequantization&);
  void (*pack_blocks)(const Pool&, const BlockMatrix&, uint8_t* packed);
  int64_t (*multiply_blocks_scratch)(const BlockProduct&);
  void (*multiply_blocks)(const Pool&, const BlockProduct&, uint8_t* scratch);
};

// Only those of the target architecture are defined; see processor.h.
extern const Kernels kAvx2, kAvx512Vnni, kAmxInt8;
extern const Kernels kNeon, kNeonDotprod, kNeonI8mm;

}  // namespace jaxdml
