// Threads and blocks in random order, with every access noted: what a kernel does that only happens
// to be right in one order, or that a GPU's memory would not forgive. Pointers are G<T> here.
//
// Faults: an access outside of the arrays; two accesses to one place, one of them a write, in two
// blocks, or in two threads of a block without a barrier between; a read of shared memory that this
// block has not written; threads at different barriers, or gone while others wait at one.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <setjmp.h>
#include <ucontext.h>

struct uint3 { unsigned x, y, z; };
typedef uint3 dim3;
static uint3 threadIdx, blockIdx;
static dim3 blockDim, gridDim;
static int _thread, _block, _epoch;  // of the thread that runs; blocks and threads count from 1

static char* _message;
static int _faults;
static void _fault(const char* what, long a, long b) {
  if (_faults++ < 4)
    _message += sprintf(_message, "%s (%ld, %ld; block %d, thread %d, after %d barriers). ", what, a,
                        b, _block - 1, _thread - 1, _epoch);
}

// Who wrote a place last, and two threads that have read it since.
struct Access { int block, thread, epoch; };
struct Cell { Access written, read, read2; };
struct Range { char *begin, *end; Cell* cells; bool is_shared; };
static Range _ranges[4096];
static int _n_ranges, _last_range;

static Range* _range_of(const char* p) {
  if (p >= _ranges[_last_range].begin && p < _ranges[_last_range].end) return _ranges + _last_range;
  for (int i = 0; i < _n_ranges; i++)
    if (p >= _ranges[i].begin && p < _ranges[i].end) { _last_range = i; return _ranges + i; }
  return nullptr;
}
static bool _conflicts(const Access& a, bool is_shared) {
  if (!a.block || (is_shared && a.block != _block)) return false;
  return a.block != _block || (a.thread != _thread && a.epoch == _epoch);
}
// Notes an access; false if there is no such place.
static bool _touch(const void* at, size_t n, bool writes, bool is_atomic = false) {
  const char* p = (const char*)at;
  Range* range = _range_of(p);
  if (!range || p + n > range->end) {
    _fault(writes ? "a write outside of the arrays" : "a read outside of the arrays",
           range ? p - range->begin : -1, range ? range->end - range->begin : -1);
    return false;
  }
  if (is_atomic) return true;
  Cell& c = range->cells[p - range->begin];
  bool shared = range->is_shared;
  long place = p - range->begin;
  if (shared && !writes && c.written.block != _block)
    _fault("a read of shared memory that nobody wrote", place, 0);
  else if (_conflicts(c.written, shared))
    _fault(writes ? "two writes without a barrier" : "a read without a barrier after a write", place,
           c.written.thread - 1);
  Access me = {_block, _thread, _epoch};
  if (!writes) {
    bool is_mine = !c.read.block || (c.read.block == _block && c.read.thread == _thread);
    (is_mine ? c.read : c.read2) = me;
    return true;
  }
  if (_conflicts(c.read, shared) || _conflicts(c.read2, shared))
    _fault("a write without a barrier after a read", place, c.read.thread - 1);
  c.written = me;
  c.read = c.read2 = Access();
  return true;
}

template <typename T> struct Plain { typedef T type; };
template <typename T> struct Plain<const T> { typedef T type; };
template <bool B, typename T> struct If {};
template <typename T> struct If<true, T> { typedef T type; };
template <typename T> struct Ref {
  T* p;
  typedef typename Plain<T>::type V;
  operator V() const { return _touch(p, sizeof(T), false) ? *p : V(); }
  template <typename U, typename = typename If<__is_class(V) && !__is_class(U), U>::type>
  operator U() const { return (U)(float)(V)*this; }  // of half precision
  V operator=(V v) const {
    if (_touch(p, sizeof(T), true)) *const_cast<V*>(p) = v;
    return v;
  }
  V operator=(const Ref& other) const { V v = other; return *this = v; }
  V operator+=(V v) const { V old = *this; return *this = old + v; }
  V operator*=(V v) const { V old = *this; return *this = old * v; }
};
template <typename T> struct G {
  T* p;
  Ref<T> operator[](ptrdiff_t i) const { return {p + i}; }
  Ref<T> operator*() const { return {p}; }
  G operator+(ptrdiff_t i) const { return {p + i}; }
};
template <typename T> struct Shared : G<T> {
  Shared(size_t n, char*& memory) { this->p = (T*)memory; memory += (n * sizeof(T) + 15) / 16 * 16; }
};
template <typename T> static T atomicOr(G<T> at, T x) {
  if (!_touch(at.p, sizeof(T), true, true)) return 0;
  T old = *at.p;
  *at.p = old | x;
  return old;
}
template <typename T> static T atomicAdd(G<T> at, T x) {
  if (!_touch(at.p, sizeof(T), true, true)) return 0;
  T old = *at.p;
  *at.p = old + x;
  return old;
}

#define __global__
#define __device__ static
#define __host__
#define __forceinline__ inline
#define __restrict__
#define __launch_bounds__(...)
#define __syncthreads() _wait(__LINE__)

struct Thread { jmp_buf place; ucontext_t start; bool is_started, is_over; int line, epoch; uint3 index; char stack[1 << 16]; };
static Thread *_threads, *_now;
static jmp_buf _turn;
static char _shared_bytes[1 << 16], *_shared_memory;  // 48 KiB are the most without asking for more
static void _wait(int line) {
  _now->line = line;
  _now->epoch++;
  if (!_setjmp(_now->place)) _longjmp(_turn, 1);
}
static void _resume(Thread* thread) {
  _now = thread;
  threadIdx = thread->index;
  _thread = thread - _threads + 1;
  _epoch = thread->epoch;
  if (_setjmp(_turn)) return;
  if (thread->is_started) _longjmp(thread->place, 1);
  thread->is_started = true;
  setcontext(&thread->start);
}
template <typename F> struct Body {
  static F* body;
  static void run() {
    for (;;) {  // block after block
      _shared_memory = _shared_bytes;
      (*body)();
      _now->is_over = true;
      _wait(0);
    }
  }
};
template <typename F> F* Body<F>::body;

static unsigned _state;
static unsigned _random(unsigned n) { return (_state = _state * 1664525u + 1013904223u) / 65536u % n; }
template <typename T> static void _shuffle(T* a, unsigned n) {
  for (unsigned i = n; i > 1; i--) { unsigned j = _random(i); T x = a[i - 1]; a[i - 1] = a[j]; a[j] = x; }
}

// ranges: the beginnings and ends of the arrays.
template <typename F>
static int run_noted(const long* dims, long seed, long n_ranges, const long* ranges, char* message, F body) {
  gridDim = {(unsigned)dims[0], (unsigned)dims[1], (unsigned)dims[2]};
  blockDim = {(unsigned)dims[3], (unsigned)dims[4], (unsigned)dims[5]};
  _message = message, _faults = 0, _state = (unsigned)seed, _last_range = 0, _n_ranges = 0;
  for (long i = 0; i < n_ranges; i++)
    _ranges[_n_ranges++] = {(char*)ranges[2 * i], (char*)ranges[2 * i + 1], nullptr, false};
  _ranges[_n_ranges++] = {_shared_bytes, _shared_bytes + sizeof _shared_bytes, nullptr, true};
  for (int i = 0; i < _n_ranges; i++)
    _ranges[i].cells = (Cell*)calloc(_ranges[i].end - _ranges[i].begin + 1, sizeof(Cell));
  unsigned n = blockDim.x * blockDim.y * blockDim.z, n_blocks = gridDim.x * gridDim.y * gridDim.z;
  _threads = (Thread*)malloc(n * sizeof(Thread));
  unsigned *blocks = (unsigned*)malloc(4 * n_blocks), *order = (unsigned*)malloc(4 * n);
  for (unsigned b = 0; b < n_blocks; b++) blocks[b] = b;
  for (unsigned t = 0; t < n; t++) order[t] = t;
  Body<F>::body = &body;
  for (unsigned t = 0; t < n; t++) {
    Thread& x = _threads[t];
    x.is_started = false;
    x.index = {t % blockDim.x, t / blockDim.x % blockDim.y, t / blockDim.x / blockDim.y};
    getcontext(&x.start);
    x.start.uc_stack.ss_sp = x.stack;
    x.start.uc_stack.ss_size = sizeof(x.stack);
    makecontext(&x.start, Body<F>::run, 0);
  }
  _shuffle(blocks, n_blocks);
  for (unsigned i = 0; i < n_blocks; i++) {
    unsigned b = blocks[i];
    _block = b + 1;
    blockIdx = {b % gridDim.x, b / gridDim.x % gridDim.y, b / gridDim.x / gridDim.y};
    memset(_shared_bytes, 0xFF, sizeof _shared_bytes);  // NaN
    for (unsigned t = 0; t < n; t++) _threads[t].is_over = false, _threads[t].epoch = 0;
    for (unsigned left = n; left;) {
      _shuffle(order, n);
      for (unsigned k = 0; k < n; k++) {
        Thread* x = _threads + order[k];
        if (x->is_over) continue;
        _resume(x);
        left -= x->is_over;
      }
      int line = 0;
      for (unsigned t = 0; t < n; t++) {
        if (_threads[t].is_over) continue;
        if (line && _threads[t].line != line) _fault("threads at two barriers", line, _threads[t].line);
        line = _threads[t].line;
      }
      if (left && left < n) _fault("threads that end while others wait at a barrier", left, n);
    }
  }
  for (int i = 0; i < _n_ranges; i++) free(_ranges[i].cells);
  free(_threads), free(blocks), free(order);
  return _faults;
}
