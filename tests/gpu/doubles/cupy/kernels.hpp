// What CUDA C and CuPy have and C++ has not: half precision, and arrays of any strides.
#include <cmath>
#include <cstddef>
#include <cstdint>
using namespace std;

template <typename T> static T max(T a, T b) { return a < b ? b : a; }
template <typename T> static T min(T a, T b) { return b < a ? b : a; }

struct float16 {
  _Float16 value;
  float16() {}
  float16(float x) : value(x) {}
  operator float() const { return value; }
  float16& operator+=(float x) { value = float(value) + x; return *this; }
  float16& operator-=(float x) { value = float(value) - x; return *this; }
  float16& operator*=(float x) { value = float(value) * x; return *this; }
  float16& operator/=(float x) { value = float(value) / x; return *this; }
};

// CuPy compiles with -ftz=true: in single precision, numbers below 1.2e-38 are zero. While one lives.
struct FlushToZero {
#ifdef __SSE__
  unsigned before = __builtin_ia32_stmxcsr();
  FlushToZero() { __builtin_ia32_ldmxcsr(before | 0x8040); }
  ~FlushToZero() { __builtin_ia32_ldmxcsr(before); }
#endif
};
#ifdef IN_DOUBLE
#define FLUSH
#else
#define FLUSH FlushToZero _flush;
#endif

// The number of dimensions, then the lengths, then (of arrays) the strides in bytes.
typedef const int64_t* Dims;

struct CIndexer {
  Dims dims;
  ptrdiff_t length = 1, at[32] = {};
  CIndexer(Dims dims) : dims(dims) {
    for (int k = 0; k < dims[0]; k++) length *= dims[1 + k];
  }
  ptrdiff_t size() const { return length; }
  void set(ptrdiff_t i) {
    for (int k = dims[0] - 1; k >= 0; k--) {
      ptrdiff_t n = dims[1 + k] ? dims[1 + k] : 1;  // of a reduction of nothing
      at[k] = i % n;
      i /= n;
    }
  }
};

template <typename T> struct CArray {
  char* data;
  Dims dims;
  bool is_contiguous = true;
  CArray(void** args, int k) : data((char*)args[2 * k]), dims((Dims)args[2 * k + 1]) {
    ptrdiff_t step = sizeof(T);
    for (int k = ndim() - 1; k >= 0; step *= shape()[k--]) is_contiguous &= strides()[k] == step;
  }
  int ndim() const { return dims[0]; }
  const int64_t* shape() const { return dims + 1; }
  const int64_t* strides() const { return dims + 1 + dims[0]; }
  ptrdiff_t size() const { return CIndexer(dims).size(); }
  T& operator[](const CIndexer& index) const {
    char* p = data;
    for (int k = 0; k < ndim(); k++) p += index.at[k] * strides()[k];
    return *(T*)p;
  }
  T& operator[](ptrdiff_t i) const {
    if (is_contiguous) return ((T*)data)[i];
    CIndexer index(dims);
    index.set(i);
    return (*this)[index];
  }
};

