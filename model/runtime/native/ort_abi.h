// The few pieces of ONNX Runtime's C interface that we call, declared here because its wheel carries no header.
//
// The interface is a table of function pointers. A function keeps its place in it for ever: new ones are appended. So a
// place and a signature are all that is needed, and they hold for every later version.
#pragma once

#include <cstddef>
#include <cstdint>

struct OrtStatus;
struct OrtValue;
struct OrtKernelInfo;
struct OrtKernelContext;
struct OrtSessionOptions;
struct OrtCustomOpDomain;
struct OrtCustomOp;

// The oldest version we accept, 1.31. It has every function below.
inline constexpr uint32_t kApiVersion = 31;

struct OrtApi {
    void* functions[1];  // really some four hundred
};

struct OrtApiBase {
    const OrtApi* (*get_api)(uint32_t version) noexcept;
    const char* (*version_string)() noexcept;
};

enum class ErrorCode : int { fail = 1, invalid_argument = 2 };
enum class ElementType : int { float32 = 1, int8 = 3, int32 = 6, int64 = 7 };
enum class Presence : int { required = 0, optional = 1 };

// A place in the table and the signature of what stands there.
template <size_t place, class Result, class... Arguments>
struct Function {
    Result operator()(const OrtApi* api, Arguments... arguments) const {
        return reinterpret_cast<Result (*)(Arguments...) noexcept>(api->functions[place])(arguments...);
    }
};

namespace ort {
inline constexpr Function<0, OrtStatus*, ErrorCode, const char*> create_status;
inline constexpr Function<2, const char*, const OrtStatus*> error_message;
inline constexpr Function<26, OrtStatus*, const char*, OrtCustomOpDomain**> create_domain;
inline constexpr Function<27, OrtStatus*, OrtCustomOpDomain*, const OrtCustomOp*> add_to_domain;
inline constexpr Function<28, OrtStatus*, OrtSessionOptions*, OrtCustomOpDomain*> add_domain;
inline constexpr Function<51, OrtStatus*, OrtValue*, void**> tensor_data;
inline constexpr Function<85, OrtStatus*, const OrtKernelInfo*, const char*, float*> float_attribute;
inline constexpr Function<86, OrtStatus*, const OrtKernelInfo*, const char*, int64_t*> integer_attribute;
inline constexpr Function<89, OrtStatus*, const OrtKernelContext*, size_t*> output_count;
inline constexpr Function<90, OrtStatus*, const OrtKernelContext*, size_t, const OrtValue**> input;
inline constexpr Function<91, OrtStatus*, OrtKernelContext*, size_t, const int64_t*, size_t, OrtValue**> output;
inline constexpr Function<93, void, OrtStatus*> release_status;
inline constexpr Function<230, OrtStatus*, const OrtKernelInfo*, size_t*> input_count;
inline constexpr Function<244, OrtStatus*, const OrtKernelInfo*, char*, size_t*> node_name;
inline constexpr Function<249, OrtStatus*, const OrtKernelInfo*, size_t, int*, const OrtValue**> constant_input;
inline constexpr Function<274, OrtStatus*, const OrtKernelContext*, void (*)(void*, size_t), size_t, size_t, void*>
    parallel_for;
// Type and axes without a copy; the only one of these that is younger than version 16.
inline constexpr Function<414, OrtStatus*, const OrtValue*, ElementType*, const int64_t**, size_t*> tensor_shape;
}  // namespace ort

// What the runtime asks of an operator. Null where a default is meant.
struct OrtCustomOp {
    using Self = const OrtCustomOp*;

    uint32_t version = kApiVersion;
    void* (*create_kernel)(Self, const OrtApi*, const OrtKernelInfo*) = nullptr;  // superseded by the second form
    const char* (*name)(Self) = nullptr;
    const char* (*provider)(Self) = nullptr;
    ElementType (*input_type)(Self, size_t) = nullptr;
    size_t (*input_count)(Self) = nullptr;
    ElementType (*output_type)(Self, size_t) = nullptr;
    size_t (*output_count)(Self) = nullptr;
    void (*compute)(void*, OrtKernelContext*) = nullptr;  // superseded by the second form
    void (*destroy)(void*) = nullptr;
    Presence (*input_presence)(Self, size_t) = nullptr;
    Presence (*output_presence)(Self, size_t) = nullptr;
    int (*input_memory)(Self, size_t) = nullptr;
    int (*variadic_input_least)(Self) = nullptr;
    int (*variadic_input_alike)(Self) = nullptr;
    int (*variadic_output_least)(Self) = nullptr;
    int (*variadic_output_alike)(Self) = nullptr;
    OrtStatus* (*create_kernel_v2)(Self, const OrtApi*, const OrtKernelInfo*, void**) = nullptr;
    OrtStatus* (*compute_v2)(void*, OrtKernelContext*) = nullptr;
    OrtStatus* (*infer_shape)(Self, void*) = nullptr;
    int (*first_version)(Self) = nullptr;
    int (*last_version)(Self) = nullptr;
    size_t (*may_share)(int**, int**) = nullptr;
    void (*release_may_share)(int*, int*) = nullptr;
    size_t (*alias)(int**, int**) = nullptr;
    void (*release_alias)(int*, int*) = nullptr;
};
