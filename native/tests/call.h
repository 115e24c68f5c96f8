// Calls a handler through the structs of XLA's FFI, with its own implementation of errors and the thread pool.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "memory.h"
#include "seal.h"
#include "thread_pool.h"
#include "xla/ffi/api/ffi.h"

struct XLA_FFI_Error {
  std::string message;
  XLA_FFI_Error_Code code;
};

struct XLA_FFI_InvokeContext {
  jaxdml::test::ThreadPool* threads;
  int64_t count;                          // the number of threads that the pool reports
  enum { kThreads, kAtOnce, kNone } how;  // tasks run on threads, run in the caller, or are refused
};

namespace jaxdml::test {

// The size of an element in bytes; 1 for types without a width, which XLA's ByteWidth rejects.
inline int64_t width_of(XLA_FFI_DataType type) {
  switch (type) {
    case XLA_FFI_DataType_S16:
    case XLA_FFI_DataType_U16:
    case XLA_FFI_DataType_F16:
    case XLA_FFI_DataType_BF16:
      return 2;
    case XLA_FFI_DataType_S32:
    case XLA_FFI_DataType_U32:
    case XLA_FFI_DataType_F32:
      return 4;
    case XLA_FFI_DataType_S64:
    case XLA_FFI_DataType_U64:
    case XLA_FFI_DataType_F64:
    case XLA_FFI_DataType_C64:
      return 8;
    case XLA_FFI_DataType_C128:
      return 16;
    default:
      return 1;
  }
}

struct Array {
  XLA_FFI_DataType type;
  std::vector<int64_t> dims;
  int32_t mark = 0;  // the first four bytes of packed weights; 0 for other arrays

  // The size in bytes: INT64_MAX if it overflows, 0 if an extent is negative.
  int64_t bytes() const {
    int64_t total = width_of(type);
    bool is_large = false;
    for (const int64_t size : dims) is_large |= size < 0;
    if (is_large) return 0;
    for (const int64_t size : dims) is_large |= __builtin_mul_overflow(total, size, &total);
    for (const int64_t size : dims)
      if (!size) return 0;
    return is_large ? INT64_MAX : total;
  }
};

struct Attribute {
  std::string name;
  XLA_FFI_DataType type;
  bool is_array;
  std::vector<int64_t> numbers;
};

struct Call {
  XLA_FFI_Handler* handler;
  std::vector<Array> arguments = {}, results = {};
  std::vector<Attribute> attributes = {};
  XLA_FFI_ExecutionStage stage = XLA_FFI_ExecutionStage_EXECUTE;
};

inline std::string described(const Call& call) {
  const auto list = [](const std::vector<int64_t>& numbers) {
    std::string text = "[";
    for (const int64_t number : numbers) text += (text.size() > 1 ? ", " : "") + std::to_string(number);
    return text + "]";
  };
  std::string text = "stage " + std::to_string(call.stage) + ":";
  for (const Array& array : call.arguments) text += " " + std::to_string(array.type) + list(array.dims);
  text += " ->";
  for (const Array& array : call.results) text += " " + std::to_string(array.type) + list(array.dims);
  for (const Attribute& attribute : call.attributes)
    text += ", " + attribute.name + " (" + std::to_string(attribute.type) + ") " + list(attribute.numbers);
  return text;
}

// The parts of XLA's API that handlers use.
inline const XLA_FFI_Api* api() {
  static const XLA_FFI_Api api = [] {
    XLA_FFI_Api of = {};
    of.struct_size = XLA_FFI_Api_STRUCT_SIZE;
    of.api_version = {XLA_FFI_Api_Version_STRUCT_SIZE, nullptr, XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR};
    of.XLA_FFI_Error_Create = [](XLA_FFI_Error_Create_Args* args) {
      return new XLA_FFI_Error{args->message, args->errc};
    };
    of.XLA_FFI_Error_GetDetails = [](XLA_FFI_Error_GetDetails_Args* args) {
      args->message = args->error->message.c_str();
      args->errc = args->error->code;
    };
    of.XLA_FFI_Error_Destroy = [](XLA_FFI_Error_Destroy_Args* args) { delete args->error; };
    of.XLA_FFI_ThreadPool_NumThreads = [](XLA_FFI_ThreadPool_NumThreads_Args* args) -> XLA_FFI_Error* {
      if (args->ctx->how == XLA_FFI_InvokeContext::kNone) return new XLA_FFI_Error{"none", XLA_FFI_Error_Code_INTERNAL};
      *args->num_threads = args->ctx->count;
      return nullptr;
    };
    of.XLA_FFI_ThreadPool_Schedule = [](XLA_FFI_ThreadPool_Schedule_Args* args) -> XLA_FFI_Error* {
      if (args->ctx->how == XLA_FFI_InvokeContext::kNone) return new XLA_FFI_Error{"none", XLA_FFI_Error_Code_INTERNAL};
      const auto run = [task = args->task, data = args->data] { task(data); };
      if (args->ctx->how == XLA_FFI_InvokeContext::kThreads)
        args->ctx->threads->Schedule(run);
      else
        run();
      return nullptr;
    };
    return of;
  }();
  return &api;
}

// The buffers of arrays, each exactly as large as the array's shape requires.
class Buffers {
 public:
  Buffers(const std::vector<Array>& arrays, Random& random) : arrays_(arrays) {
    for (Array& array : arrays_) {
      // XLA aligns buffers to 16 bytes and more. Packed weights are bytes that hold int32, in sizes divisible by 4.
      const int64_t size = array.bytes(), width = width_of(array.type);
      const Bytes& bytes = bytes_.emplace_back(random, size, size % 4 == 0 && width < 4 ? 4 : width);
      random.fill(bytes.at(), size);
      const int64_t step = array.dims.empty() ? 0 : array.dims.back();
      for (int64_t at = 0; array.mark && step >= kSealBytes && at + step <= size; at += step) {
        memcpy(bytes.at() + at, &array.mark, 4);
        seal(bytes.at() + at, step);
      }
      buffers_.push_back(
          {XLA_FFI_Buffer_STRUCT_SIZE, nullptr, array.type, bytes.at(), int64_t(array.dims.size()), array.dims.data()});
    }
    for (XLA_FFI_Buffer& buffer : buffers_) pointers_.push_back(&buffer);
  }

  int64_t size() const { return int64_t(pointers_.size()); }
  void** pointers() { return pointers_.data(); }

 private:
  std::vector<Array> arrays_;
  std::deque<Bytes> bytes_;
  std::vector<XLA_FFI_Buffer> buffers_;
  std::vector<void*> pointers_;
};

// Attributes, sorted by name as in XLA. Each value has exactly the size of its type.
class Attributes {
 public:
  explicit Attributes(const std::vector<Attribute>& attributes) : attributes_(attributes) {
    std::sort(attributes_.begin(), attributes_.end(),
              [](const Attribute& x, const Attribute& y) { return x.name < y.name; });
    for (Attribute& attribute : attributes_) {
      if (attribute.numbers.empty() && !attribute.is_array) attribute.numbers.push_back(0);
      const size_t width = size_t(width_of(attribute.type)), count = attribute.is_array ? attribute.numbers.size() : 1;
      std::vector<uint8_t>& bytes = bytes_.emplace_back(width * count);
      for (size_t i = 0; i < count && width; i++) {
        int64_t number[2] = {attribute.numbers[i]};
        if (attribute.type == XLA_FFI_DataType_PRED) number[0] = number[0] != 0;  // a bool's byte is 0 or 1
        memcpy(bytes.data() + i * width, number, width);
      }
      names_.push_back({attribute.name.data(), attribute.name.size()});
      if (attribute.is_array)
        pointers_.push_back(&arrays_.emplace_back(XLA_FFI_Array{attribute.type, count, bytes.data()}));
      else
        pointers_.push_back(&scalars_.emplace_back(XLA_FFI_Scalar{attribute.type, bytes.data()}));
      types_.push_back(attribute.is_array ? XLA_FFI_AttrType_ARRAY : XLA_FFI_AttrType_SCALAR);
    }
    for (XLA_FFI_ByteSpan& name : names_) name_pointers_.push_back(&name);
  }

  XLA_FFI_Attrs attrs() {
    return {XLA_FFI_Attrs_STRUCT_SIZE, nullptr,         int64_t(pointers_.size()), types_.data(),
            name_pointers_.data(),     pointers_.data()};
  }

 private:
  std::vector<Attribute> attributes_;
  std::deque<std::vector<uint8_t>> bytes_;
  std::deque<XLA_FFI_Array> arrays_;
  std::deque<XLA_FFI_Scalar> scalars_;
  std::deque<XLA_FFI_ByteSpan> names_;
  std::vector<XLA_FFI_ByteSpan*> name_pointers_;
  std::vector<XLA_FFI_AttrType> types_;
  std::vector<void*> pointers_;
};

// Makes the call. Returns whether it succeeded; otherwise sets the error's text.
inline bool called(const Call& call, Random& random, ThreadPool& threads, std::string& error_text) {
  Buffers arguments(call.arguments, random), results(call.results, random);
  Attributes attributes(call.attributes);
  std::vector<XLA_FFI_ArgType> types(call.arguments.size(), XLA_FFI_ArgType_BUFFER);
  std::vector<XLA_FFI_RetType> result_types(call.results.size(), XLA_FFI_RetType_BUFFER);
  XLA_FFI_InvokeContext context = {&threads, random.below(5), decltype(context.how)(random.below(3))};
  XLA_FFI_CallFrame frame = {};
  frame.struct_size = XLA_FFI_CallFrame_STRUCT_SIZE;
  frame.api = api();
  frame.ctx = &context;
  frame.stage = call.stage;
  frame.args = {XLA_FFI_Args_STRUCT_SIZE, nullptr, arguments.size(), types.data(), arguments.pointers()};
  frame.rets = {XLA_FFI_Rets_STRUCT_SIZE, nullptr, results.size(), result_types.data(), results.pointers()};
  frame.attrs = attributes.attrs();
  XLA_FFI_Error* const error = call.handler(&frame);
  if (!error) return true;
  error_text = error->message;
  delete error;
  return false;
}

}  // namespace jaxdml::test
