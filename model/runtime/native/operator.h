// From a kernel class to an operator that ONNX Runtime knows.
//
// A kernel has a name, its ports, a constructor that reads attributes and constant inputs, and `compute`. It is shared by
// all threads of a session, so `compute` is const and keeps what it needs for one call in `scratch`. Both may throw
// `Refusal`; nothing else crosses the border.
#pragma once

#include <array>
#include <atomic>
#include <cstdlib>
#include <exception>
#include <initializer_list>
#include <new>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "ort_abi.h"

namespace dragoman {

struct Refusal : std::runtime_error {
    using std::runtime_error::runtime_error;
};

inline void require(bool holds, const char* what) {
    if (!holds) throw Refusal(what);
}

struct Port {
    ElementType type;
    Presence presence = Presence::required;
};

// A view of a tensor; `data` is null where an optional one is absent.
template <class T>
struct Tensor {
    T* data = nullptr;
    const int64_t* shape = nullptr;
    size_t axes = 0;

    explicit operator bool() const { return data != nullptr; }
    int64_t last() const { return axes ? shape[axes - 1] : 1; }
    // All axes but the last as one.
    int64_t rows() const {
        int64_t product = 1;
        for (size_t i = 0; i + 1 < axes; ++i) product *= shape[i];
        return product;
    }
    int64_t size() const { return rows() * last(); }
};

inline void check(const OrtApi* api, OrtStatus* status) {
    if (!status) return;
    const std::string message = ort::error_message(api, status);
    ort::release_status(api, status);
    throw Refusal(message);
}

template <class T>
Tensor<T> view(const OrtApi* api, const OrtValue* value) {
    Tensor<T> tensor;
    if (!value) return tensor;
    ElementType type;
    check(api, ort::tensor_shape(api, value, &type, &tensor.shape, &tensor.axes));
    check(api, ort::tensor_data(api, const_cast<OrtValue*>(value),
                                const_cast<void**>(reinterpret_cast<const void**>(&tensor.data))));
    return tensor;
}

// What a kernel is made from.
class Node {
public:
    Node(const OrtApi* api, const OrtKernelInfo* info) : api(api), info_(info) {}

    float real(const char* name) const {
        float value;
        check(api, ort::float_attribute(api, info_, name, &value));
        return value;
    }

    int64_t integer(const char* name) const {
        int64_t value;
        check(api, ort::integer_attribute(api, info_, name, &value));
        return value;
    }

    int64_t integer(const char* name, int64_t otherwise) const {
        int64_t value;
        OrtStatus* status = ort::integer_attribute(api, info_, name, &value);
        if (!status) return value;
        ort::release_status(api, status);
        return otherwise;
    }

    // An input whose value is known now; anything else is refused by its name.
    template <class T>
    Tensor<const T> constant(size_t index, const char* name) const {
        int constant = 0;
        const OrtValue* value = nullptr;
        check(api, ort::constant_input(api, info_, index, &constant, &value));
        if (!constant || !value) throw Refusal(std::string(name) + " must be a constant initializer, but is computed.");
        return view<const T>(api, value);
    }

    size_t inputs() const {
        size_t count;
        check(api, ort::input_count(api, info_, &count));
        return count;
    }

    const OrtApi* const api;

private:
    const OrtKernelInfo* info_;
};

// One call of `compute`.
class Call {
public:
    Call(const OrtApi* api, OrtKernelContext* context) : api_(api), context_(context) {}

    template <class T>
    Tensor<const T> input(size_t index) const {
        const OrtValue* value = nullptr;
        check(api_, ort::input(api_, context_, index, &value));
        return view<const T>(api_, value);
    }

    template <class T>
    T* output(size_t index, const int64_t* shape, size_t axes) const {
        OrtValue* value = nullptr;
        check(api_, ort::output(api_, context_, index, shape, axes, &value));
        void* data = nullptr;  // stays null where an optional output is not asked for
        if (value) check(api_, ort::tensor_data(api_, value, &data));
        return static_cast<T*>(data);
    }

    template <class T>
    T* output(size_t index, std::initializer_list<int64_t> shape) const {
        return output<T>(index, shape.begin(), shape.size());
    }

    size_t outputs() const {
        size_t count;
        check(api_, ort::output_count(api_, context_, &count));
        return count;
    }

    // Calls work(0) … work(count − 1), in any order and by all threads of the session, if the whole takes so many
    // multiplications that waking them pays. Each call must write what no other one does.
    template <class Work>
    void parallel(int64_t count, int64_t multiplications, const Work& work) const {
        if (count < 2 || multiplications < kWorthSharing) {
            for (int64_t i = 0; i < count; ++i) work(i);
            return;
        }
        Shared<Work> shared{work};
        check(api_, ort::parallel_for(api_, context_, Shared<Work>::run, size_t(count), 0, &shared));
        if (shared.failed) throw std::bad_alloc();
    }

private:
    static constexpr int64_t kWorthSharing = 4'000'000;  // some 15 µs

    // Nothing but a lack of memory can go wrong in a part of the work, and no exception may pass through the runtime.
    template <class Work>
    struct Shared {
        const Work& work;
        std::atomic<bool> failed = false;

        static void run(void* self, size_t i) noexcept {
            auto* shared = static_cast<Shared*>(self);
            try {
                shared->work(int64_t(i));
            } catch (const std::bad_alloc&) {
                shared->failed = true;
            }
        }
    };

    const OrtApi* api_;
    OrtKernelContext* context_;
};

// Runs `work`; what it throws becomes a status with the operator's name before it.
template <class Work>
OrtStatus* guarded(const OrtApi* api, const char* name, Work work) noexcept {
    try {
        work();
        return nullptr;
    } catch (const std::exception& error) {
        return ort::create_status(api, ErrorCode::invalid_argument, (std::string(name) + ": " + error.what()).c_str());
    }
}

template <class Kernel>
struct Operator : OrtCustomOp {
    struct Instance {
        const OrtApi* api;
        Kernel kernel;
    };

    Operator() {
        name = [](Self) { return Kernel::kName; };
        provider = [](Self) -> const char* { return "CPUExecutionProvider"; };
        input_count = [](Self) { return Kernel::kInputs.size(); };
        input_type = [](Self, size_t i) { return Kernel::kInputs[i].type; };
        input_presence = [](Self, size_t i) { return Kernel::kInputs[i].presence; };
        input_memory = [](Self, size_t) { return 0; };
        output_count = [](Self) { return Kernel::kOutputs.size(); };
        output_type = [](Self, size_t i) { return Kernel::kOutputs[i].type; };
        output_presence = [](Self, size_t i) { return Kernel::kOutputs[i].presence; };
        first_version = last_version = [](Self) { return 1; };
        create_kernel_v2 = [](Self, const OrtApi* api, const OrtKernelInfo* info, void** made) {
            return guarded(api, Kernel::kName, [&] { *made = new Instance{api, Kernel(Node(api, info))}; });
        };
        compute_v2 = [](void* made, OrtKernelContext* context) {
            const auto* instance = static_cast<const Instance*>(made);
            return guarded(instance->api, Kernel::kName, [&] { instance->kernel.compute(Call(instance->api, context)); });
        };
        destroy = [](void* made) { delete static_cast<Instance*>(made); };
    }
};

// An array on a cache line's boundary.
template <class T>
class Aligned {
public:
    static_assert(std::is_trivial_v<T>);
    Aligned() = default;
    explicit Aligned(size_t count) { grow(count); }
    Aligned(Aligned&& other) noexcept : data_(other.data_), count_(other.count_) {
        other.data_ = nullptr;
        other.count_ = 0;
    }
    Aligned& operator=(Aligned&&) = delete;
    ~Aligned() { std::free(data_); }

    // Room for `count`; what it held is lost if it must grow.
    T* grow(size_t count) {
        if (count > count_) {
            std::free(data_);
            count_ = 0;
            data_ = static_cast<T*>(std::aligned_alloc(64, (count * sizeof(T) + 63) / 64 * 64));
            if (!data_) throw std::bad_alloc();
            count_ = count;
        }
        return data_;
    }

    T* data() const { return data_; }
    T& operator[](size_t i) const { return data_[i]; }

private:
    T* data_ = nullptr;
    size_t count_ = 0;
};

// Memory of this thread for the length of one call. Each purpose has its own; it grows and is kept.
template <class Purpose, class T>
T* scratch(size_t count) {
    thread_local Aligned<T> memory;
    return memory.grow(count);
}

}  // namespace dragoman
