// NCCL for the processes of one host and their host memory: the C interface of libnccl.so.2.
//
// Calls return at once, as NCCL's do; a thread of each communicator does their work in order. Where
// NCCL would hang or compute garbage (calls that differ between ranks, peers that do not come), the
// work fails, and ncclGetLastError says why. Work that a revoked or aborted communicator leaves undone
// counts as done, and fills what it was to write with ones (NaN). Sums are in the order of the ranks.
// Calls on streams that capture are kept for the graph, whose launches make them again. Whether and
// where a call was captured must be the same on all ranks, and graphs must end before the communicator.
// The environment variable NCCL_DOUBLE_TIMEOUT limits the seconds for which a rank waits for another
// (60).
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>
using namespace std;

namespace {

constexpr int MOST_RANKS = 8;
constexpr size_t CHUNK = 1 << 17;  // bytes that a rank shows to the others at a time

enum Result { OK, CUDA_ERROR, SYSTEM_ERROR, INTERNAL_ERROR, INVALID_ARGUMENT, INVALID_USAGE, REMOTE_ERROR };
enum Type { INT8, UINT8, INT32, UINT32, INT64, UINT64, FLOAT16, FLOAT32, FLOAT64, BFLOAT16, N_TYPES };
enum Reduction { SUM, PROD, MAX, MIN, AVG, PRE_MUL_SUM };  // and more of the last: one per factor
constexpr size_t WIDTH[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};

struct Failure {
  Result code;
  string text;
};

struct BFloat16 {
  uint16_t bits;
  BFloat16() : bits(0) {}
  BFloat16(double x) {
    float narrow = float(x);
    uint32_t b;
    memcpy(&b, &narrow, 4);
    bool is_nan = (b & 0x7fffffff) > 0x7f800000;
    bits = is_nan ? (b >> 16) | 64 : (b + 0x7fff + (b >> 16 & 1)) >> 16;
  }
  operator float() const {
    uint32_t b = uint32_t(bits) << 16;
    float x;
    memcpy(&x, &b, 4);
    return x;
  }
};

// What all ranks of a collective must agree on.
struct Call {
  char name[16];
  uint64_t count;
  int type, reduction, root, captured;  // the number of a captured call; 0 if it is none
  string text() const {
    return string(name) + "(count=" + to_string(count) + ", type=" + to_string(type) +
           ", op=" + to_string(reduction) + ", root=" + to_string(root) + ")" +
           (captured ? ", captured as number " + to_string(captured) : "");
  }
};

// A message on its way from one rank to another; `bytes` are left of it.
struct Box {
  atomic<int> is_full;
  uint64_t bytes;
  char data[CHUNK];
};

// The memory that the ranks of a communicator share. It starts as zeros.
struct Shared {
  atomic<int> n_joined, n_arrived, n_barriers;
  int device[MOST_RANKS], color[MOST_RANKS], key[MOST_RANKS];
  Call call[MOST_RANKS];
  char slot[MOST_RANKS][CHUNK];
  Box box[MOST_RANKS][MOST_RANKS];
};

struct Work {
  Call call;
  const char* in;
  char* out;
  double factor;  // of PRE_MUL_SUM
  uint64_t number, group;
  uint64_t left;  // bytes of a message
  uint64_t out_bytes;
  bool is_send() const { return !strcmp(call.name, "Send"); }
  bool is_message() const { return is_send() || !strcmp(call.name, "Recv"); }
};

}  // namespace

struct Comm {
  int size, rank, device, n_children = 0;
  string name;
  Shared* shared;
  vector<pair<int, double>> factors;  // (type, factor)
  mutex lock;
  condition_variable changed;
  deque<Work> queue;
  uint64_t n_begun = 0, n_done = 0;
  vector<vector<Work>> captured;  // the groups of captured calls
  int n_captured = 0, n_in_graphs = 0;  // calls that were captured; groups that graphs hold
  atomic<bool> is_stopped{false}, is_closing{false}, is_closed{false};
  Result error = OK;
  string error_text;
  thread worker;
};

typedef struct { char bytes[128]; } UniqueId;
// Says which device is current; checks and notes an access to memory, and writes why it is refused.
typedef int (*CurrentDevice)();
typedef int (*Access)(const char* name, int device, uint64_t stream, uint64_t pointer, uint64_t bytes,
                      int writes, Comm* comm, uint64_t number, char* why);
// Returns a number for what a stream captures, 0 if it does not; CURRENT is the calling thread's stream.
typedef uint64_t (*Captures)(uint64_t stream);
// Takes note of a captured group.
typedef void (*Captured)(Comm* comm, uint64_t index, uint64_t stream);
constexpr uint64_t CURRENT = ~0ull;

namespace {

CurrentDevice current_device = nullptr;
Access access_memory = nullptr;
Captures captures = nullptr;
Captured note_captured = nullptr;
thread_local string last_error;
thread_local int depth = 0;
struct Member {
  Comm* comm;
  Work work;
  uint64_t stream, capture;
};
thread_local vector<Member> group;
atomic<uint64_t> n_groups{0};

double now() {
  return chrono::duration<double>(chrono::steady_clock::now().time_since_epoch()).count();
}

double timeout() {
  const char* text = getenv("NCCL_DOUBLE_TIMEOUT");
  return text ? atof(text) : 60;
}

Result fail(Result code, const string& text) {
  last_error = text;
  return code;
}

// Waits until a condition holds that other ranks bring about.
template <typename Condition>
void until(const Comm& comm, const string& what, Condition holds) {
  double end = now() + timeout();
  for (int n = 0; !holds(); n++) {
    if (comm.is_stopped) throw Failure{REMOTE_ERROR, "the communicator was aborted or revoked"};
    if (now() > end) throw Failure{REMOTE_ERROR, what + ": another rank did not come; NCCL would hang"};
    if (n < 100) this_thread::yield(); else usleep(50);
  }
}

void barrier(Comm& comm, const string& what) {
  Shared& shared = *comm.shared;
  int before = shared.n_barriers;
  if (++shared.n_arrived == comm.size) {
    shared.n_arrived = 0;
    shared.n_barriers++;
  } else {
    until(comm, what, [&] { return shared.n_barriers != before; });
  }
}

template <typename T>
T combine(T a, T b, int reduction) {
  switch (reduction) {
    case PROD: return T(a * b);
    case MAX: return a > b ? a : b;
    case MIN: return a < b ? a : b;
    default: return T(a + b);
  }
}

// Reduces what the ranks show, in their order; rounds to the type after each addition.
template <typename T>
void reduce(const Comm& comm, char* out, size_t begin, size_t n, int reduction) {
  for (size_t i = 0; i < n; i++) {
    T total{}, x;
    for (int rank = 0; rank < comm.size; rank++) {
      memcpy(&x, comm.shared->slot[rank] + (begin + i) * sizeof(T), sizeof(T));
      total = rank ? combine(total, x, reduction) : x;
    }
    if (reduction == AVG) total = T(total / comm.size);
    memcpy(out + i * sizeof(T), &total, sizeof(T));
  }
}

template <typename T>
void multiply(char* values, size_t n, double factor) {
  for (T* x = (T*)values; x < (T*)values + n; x++) *x = T(*x * T(factor));
}

// Calls a template for the type of a number.
#define FOR_TYPE(type, function, ...) \
  switch (type) { \
    case INT8: function<int8_t>(__VA_ARGS__); break; \
    case UINT8: function<uint8_t>(__VA_ARGS__); break; \
    case INT32: function<int32_t>(__VA_ARGS__); break; \
    case UINT32: function<uint32_t>(__VA_ARGS__); break; \
    case INT64: function<int64_t>(__VA_ARGS__); break; \
    case UINT64: function<uint64_t>(__VA_ARGS__); break; \
    case FLOAT16: function<_Float16>(__VA_ARGS__); break; \
    case FLOAT32: function<float>(__VA_ARGS__); break; \
    case FLOAT64: function<double>(__VA_ARGS__); break; \
    case BFLOAT16: function<BFloat16>(__VA_ARGS__); break; \
  }

void check_agreement(Comm& comm, const Call& mine) {
  comm.shared->call[comm.rank] = mine;
  barrier(comm, mine.text());
  string differing;
  for (int rank = 0; rank < comm.size; rank++) {
    const Call& other = comm.shared->call[rank];
    if (memcmp(&other, &mine, sizeof mine))
      differing += "; rank " + to_string(rank) + ": " + other.text();
  }
  barrier(comm, mine.text());
  if (!differing.empty())
    throw Failure{INVALID_USAGE, "ranks differ: rank " + to_string(comm.rank) + ": " + mine.text() + differing};
}

void run_collective(Comm& comm, Work& work) {
  const Call& call = work.call;
  check_agreement(comm, call);
  string name = call.name;
  int me = comm.rank;
  size_t width = WIDTH[call.type], most = CHUNK / width, count = call.count;
  bool scatters = name == "ReduceScatter", sends = name != "Broadcast" || me == call.root;
  size_t total = scatters ? count * comm.size : count;
  for (size_t at = 0; at < total; at += most) {
    size_t n = min(most, total - at);
    char* mine = comm.shared->slot[me];
    if (sends) memcpy(mine, work.in + at * width, n * width);
    if (call.reduction == PRE_MUL_SUM) FOR_TYPE(call.type, multiply, mine, n, work.factor);
    barrier(comm, call.text());
    char* out = work.out + at * width;
    if (name == "Broadcast") {
      memcpy(out, comm.shared->slot[call.root], n * width);
    } else if (name == "AllGather") {
      for (int rank = 0; rank < comm.size; rank++)
        memcpy(out + rank * count * width, comm.shared->slot[rank], n * width);
    } else if (scatters) {
      size_t begin = max(at, me * count), end = min(at + n, (me + 1) * count);
      if (begin < end)
        FOR_TYPE(call.type, reduce, comm, work.out + (begin - me * count) * width, begin - at, end - begin, call.reduction);
    } else if (name == "AllReduce" || me == call.root) {
      FOR_TYPE(call.type, reduce, comm, out, 0, n, call.reduction);
    }
    barrier(comm, call.text());
  }
}

// Moves the messages of one group, in the order of each pair of ranks, all pairs at once.
void run_messages(Comm& comm, vector<Work>& messages) {
  size_t n_open = count_if(messages.begin(), messages.end(), [](Work& work) { return work.left > 0; });
  until(comm, messages[0].call.text(), [&] {
    map<pair<bool, int>, bool> is_busy;
    for (Work& work : messages) {
      bool is_send = work.is_send();
      int peer = work.call.root;
      if (!work.left || is_busy[{is_send, peer}]) continue;
      is_busy[{is_send, peer}] = true;
      Box& box = is_send ? comm.shared->box[comm.rank][peer] : comm.shared->box[peer][comm.rank];
      if (box.is_full == is_send) continue;
      uint64_t n = min(work.left, uint64_t(CHUNK)), at = work.call.count * WIDTH[work.call.type] - work.left;
      if (is_send) {
        memcpy(box.data, work.in + at, n);
        box.bytes = work.left;
      } else {
        if (box.bytes != work.left)
          throw Failure{INVALID_USAGE, work.call.text() + ": the message has " + to_string(box.bytes) + " bytes, not " + to_string(work.left)};
        memcpy(work.out + at, box.data, n);
      }
      box.is_full = is_send;
      work.left -= n;
      n_open -= !work.left;
    }
    return n_open == 0;
  });
}

// What a communicator's thread does.
void run(Comm* comm) {
  for (;;) {
    vector<Work> batch;
    {
      unique_lock<mutex> held(comm->lock);
      comm->changed.wait(held, [&] { return !comm->queue.empty() || comm->is_closing; });
      if (comm->queue.empty()) return;
      do {
        batch.push_back(comm->queue.front());
        comm->queue.pop_front();
      } while (!comm->queue.empty() && batch[0].is_message() && comm->queue.front().is_message() &&
               comm->queue.front().group == batch[0].group);
    }
    Failure failure{comm->error, comm->error_text};
    if (failure.code == OK) {
      try {
        if (batch[0].is_message()) run_messages(*comm, batch);
        else if (!comm->is_stopped) run_collective(*comm, batch[0]);
      } catch (const Failure& caught) {
        failure = {caught.code, "rank " + to_string(comm->rank) + ": " + caught.text};
      }
    }
    lock_guard<mutex> held(comm->lock);
    if (comm->is_stopped && comm->error == OK) {
      for (Work& work : batch) memset(work.out, 0xff, work.out_bytes);
      failure = {OK, ""};
    }
    if (failure.code == OK) comm->n_done = batch.back().number;
    comm->error = failure.code;
    comm->error_text = failure.text;
    comm->changed.notify_all();
  }
}

// Waits for the work up to a number; returns the communicator's error.
Result wait_for(Comm* comm, uint64_t number) {
  unique_lock<mutex> held(comm->lock);
  comm->changed.wait(held, [&] { return comm->n_done >= number || comm->error != OK || comm->is_closed; });
  return comm->n_done >= number ? OK : fail(comm->error, comm->error_text);
}

Result check(Comm* comm) {
  if (!comm) return fail(INVALID_ARGUMENT, "the communicator is null");
  if (comm->is_closed) return fail(INVALID_USAGE, "the communicator was destroyed or aborted");
  if (comm->is_stopped) return fail(INVALID_USAGE, "the communicator was revoked: only shrink and abort may follow");
  return comm->error == OK ? OK : fail(comm->error, comm->error_text);
}

// Refuses what would wait for the device, or free what a graph uses.
Result check_no_capture(const char* name) {
  if (captures && captures(CURRENT)) return fail(INVALID_USAGE, string(name) + " is not permitted when the stream is capturing");
  return OK;
}

Result end_group();

// Checks a call, and appends it to the group, or hands it to the communicator's thread.
Result call(const char* name, const void* in, void* out, size_t in_count, size_t out_count, size_t count,
            int type, int reduction, int root, Comm* comm, void* stream) {
  Work work{};
  if (Result error = check(comm)) return error;
  if (type < 0 || type >= N_TYPES) return fail(INVALID_ARGUMENT, "unknown type " + to_string(type));
  if (root < 0 || root >= comm->size) return fail(INVALID_ARGUMENT, "no such rank: " + to_string(root));
  if ((in_count && !in) || (out_count && !out)) return fail(INVALID_ARGUMENT, "a buffer is null");
  if (reduction >= PRE_MUL_SUM) {
    size_t index = reduction - PRE_MUL_SUM;
    if (index >= comm->factors.size()) return fail(INVALID_ARGUMENT, "unknown operation " + to_string(reduction));
    if (comm->factors[index].first != type) return fail(INVALID_ARGUMENT, "the operation's factor is of another type");
    work.factor = comm->factors[index].second;
    reduction = PRE_MUL_SUM;
  }
  snprintf(work.call.name, sizeof work.call.name, "%s", name);
  work.call.count = count, work.call.type = type, work.call.reduction = reduction, work.call.root = root;
  work.in = (const char*)in, work.out = (char*)out;
  uint64_t capture = captures ? captures((uint64_t)stream) : 0;
  work.number = capture ? 0 : ++comm->n_begun;
  work.left = count * WIDTH[type];
  work.out_bytes = out_count * WIDTH[type];
  if (access_memory) {
    char why[600] = "";
    size_t width = WIDTH[type];
    auto refuses = [&](const void* p, size_t n, int writes) {
      return n && access_memory(name, comm->device, (uint64_t)stream, (uint64_t)p, n * width, writes, comm, work.number, why);
    };
    bool reads = in != out || !out_count;  // in place, it writes
    if ((reads && refuses(in, in_count, 0)) || refuses(out, out_count, 1)) {
      comm->n_begun -= !capture;
      return fail(INVALID_USAGE, why);
    }
  }
  bool is_alone = depth == 0;
  depth += is_alone;
  if (capture) work.call.captured = ++comm->n_captured;
  group.push_back({comm, work, (uint64_t)stream, capture});
  return is_alone ? end_group() : OK;
}

void enqueue(Comm* comm, Work work, uint64_t number) {
  work.group = number;
  lock_guard<mutex> held(comm->lock);
  comm->queue.push_back(work);
  comm->changed.notify_all();
}

Result end_group() {
  if (depth == 0) return fail(INVALID_USAGE, "ncclGroupEnd without ncclGroupStart");
  if (--depth) return OK;
  vector<Member> members;
  members.swap(group);
  for (Member& member : members)
    if (member.capture != members[0].capture)
      return fail(INVALID_USAGE, "the streams of a group must all be captured by the same graph, or none of them");
  if (!members.empty() && members[0].capture) {
    map<Comm*, pair<vector<Work>, uint64_t>> by_comm;
    for (Member& member : members) {
      by_comm[member.comm].first.push_back(member.work);
      by_comm[member.comm].second = member.stream;
    }
    for (auto& [comm, captured] : by_comm) {
      comm->captured.push_back(captured.first);
      comm->n_in_graphs++;
      note_captured(comm, comm->captured.size() - 1, captured.second);
    }
    return OK;
  }
  uint64_t number = ++n_groups;
  for (Member& member : members) enqueue(member.comm, member.work, number);
  return OK;
}

Result join(Comm** made, int size, const char* name, int rank, int device) {
  if (size < 1 || size > MOST_RANKS || rank < 0 || rank >= size)
    return fail(INVALID_ARGUMENT, "rank " + to_string(rank) + " of " + to_string(size) + " (the double takes 8 ranks)");
  Comm* comm = new Comm;
  comm->size = size, comm->rank = rank, comm->device = device, comm->name = name;
  int file = shm_open(name, O_CREAT | O_RDWR, 0600);
  if (file < 0 || ftruncate(file, sizeof(Shared))) return fail(SYSTEM_ERROR, "no shared memory");
  comm->shared = (Shared*)mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  comm->shared->device[rank] = device;
  comm->shared->n_joined++;
  try {
    until(*comm, "ncclCommInitRank", [&] { return comm->shared->n_joined >= size; });
  } catch (const Failure& failure) {
    shm_unlink(name);
    return fail(failure.code, failure.text);
  }
  if (rank == 0) shm_unlink(name);
  const char* allows = getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  for (int other = 0; other < size; other++)
    if (other != rank && comm->shared->device[other] == device && !(allows && !strcmp(allows, "1")))
      return fail(INVALID_USAGE, "Duplicate GPU detected: ranks " + to_string(rank) + " and " + to_string(other) + " both on device " + to_string(device));
  comm->worker = thread(run, comm);
  *made = comm;
  return OK;
}

// Ends a communicator's thread. The object stays, to refuse later calls.
Result close_comm(Comm* comm, bool must_finish) {
  if (!comm || comm->is_closed) return fail(INVALID_USAGE, "the communicator was destroyed before");
  if (Result error = check_no_capture("the end of a communicator")) return error;
  if (comm->n_in_graphs) return fail(INVALID_USAGE, "graphs hold work of the communicator: NCCL would wait until they are destroyed");
  Result error = OK;
  if (must_finish) error = comm->is_stopped ? fail(INVALID_USAGE, "a revoked communicator must be aborted: NCCL would hang") : wait_for(comm, comm->n_begun);
  if (must_finish && comm->is_stopped) return error;
  comm->is_stopped = comm->is_stopped || !must_finish || error != OK;
  comm->is_closing = true;
  {
    lock_guard<mutex> held(comm->lock);
    comm->changed.notify_all();
  }
  comm->worker.join();
  lock_guard<mutex> held(comm->lock);
  comm->is_closed = true;
  if (comm->error == OK && !must_finish) comm->error = REMOTE_ERROR, comm->error_text = "the communicator was aborted";
  comm->changed.notify_all();
  munmap(comm->shared, sizeof(Shared));
  return error;
}

}  // namespace

extern "C" {

void ncclDoubleConnect(CurrentDevice device, Access access, Captures captures_, Captured captured) {
  current_device = device, access_memory = access, captures = captures_, note_captured = captured;
}
// What a graph that is launched does for a captured group. Waits until it is done.
Result ncclDoubleReplay(Comm* comm, uint64_t index) {
  if (Result error = check(comm)) return error;
  uint64_t number = ++n_groups;
  for (Work work : comm->captured[index]) {
    work.number = ++comm->n_begun;
    enqueue(comm, work, number);
  }
  return wait_for(comm, comm->n_begun);
}
void ncclDoubleForget(Comm* comm, uint64_t index) {
  comm->captured[index].clear();
  comm->n_in_graphs--;
}
int ncclDoubleIsDone(Comm* comm, uint64_t number) {
  lock_guard<mutex> held(comm->lock);
  return comm->n_done >= number || comm->is_closed;
}
int ncclDoubleWait(Comm* comm, uint64_t number) { return wait_for(comm, number); }

Result ncclGetVersion(int* version) { return *version = 23203, OK; }
Result ncclGetUniqueId(UniqueId* id) {
  static atomic<int> n{0};
  memset(id, 0, sizeof *id);
  snprintf(id->bytes, sizeof id->bytes, "/nccl-double-%d-%d-%lld", getpid(), n++, (long long)(now() * 1e6));
  return OK;
}
const char* ncclGetErrorString(Result error) {
  static const char* texts[] = {"no error", "unhandled cuda error", "unhandled system error", "internal error", "invalid argument",
                                "invalid usage", "remote process exited or there was a network error"};
  return error >= 0 && error < 7 ? texts[error] : "unknown result code";
}
const char* ncclGetLastError(Comm* comm) { return last_error.c_str(); }

Result ncclCommInitRank(Comm** comm, int size, UniqueId id, int rank) {
  if (depth) return fail(INVALID_USAGE, "the double makes no communicators in groups");
  if (Result error = check_no_capture("ncclCommInitRank")) return error;
  return join(comm, size, id.bytes, rank, current_device ? current_device() : rank);
}
Result ncclCommInitRankConfig(Comm** comm, int size, UniqueId id, int rank, void* config) { return ncclCommInitRank(comm, size, id, rank); }
Result ncclCommInitRankScalable(Comm** comm, int size, int rank, int n_ids, UniqueId* ids, void* config) { return ncclCommInitRank(comm, size, ids[0], rank); }
Result ncclCommInitAll(Comm** comms, int n, const int* devices) { return fail(INVALID_USAGE, "the double has one communicator for each process"); }

static Result join_part(Comm* comm, const vector<int>& ranks, int label, Comm** made) {
  string name = comm->name + "." + to_string(comm->n_children++) + "." + to_string(label);
  for (size_t i = 0; i < ranks.size(); i++)
    if (ranks[i] == comm->rank) return join(made, ranks.size(), name.c_str(), i, comm->device);
  return OK;
}
Result ncclCommSplit(Comm* comm, int color, int key, Comm** made, void* config) {
  *made = nullptr;
  if (Result error = check_no_capture("ncclCommSplit")) return error;
  if (Result error = check(comm)) return error;
  if (Result error = wait_for(comm, comm->n_begun)) return error;
  Shared& shared = *comm->shared;
  shared.color[comm->rank] = color, shared.key[comm->rank] = key;
  map<pair<int, int>, int> found;
  try {
    barrier(*comm, "ncclCommSplit");
    for (int rank = 0; rank < comm->size; rank++)
      if (shared.color[rank] == color) found[{shared.key[rank], rank}] = rank;
    barrier(*comm, "ncclCommSplit");
  } catch (const Failure& failure) {
    return fail(failure.code, failure.text);
  }
  vector<int> ranks;
  for (auto& [key_and_rank, rank] : found) ranks.push_back(rank);
  return color < 0 ? (comm->n_children++, OK) : join_part(comm, ranks, color, made);
}
Result ncclCommRevoke(Comm* comm, int flags) {
  if (Result error = check(comm)) return error;
  if (Result error = check_no_capture("ncclCommRevoke")) return error;
  if (flags) return fail(INVALID_ARGUMENT, "the flags must be 0");
  comm->is_stopped = true;
  return wait_for(comm, comm->n_begun);
}
Result ncclCommShrink(Comm* comm, int* excluded, int n, Comm** made, void* config, int flags) {
  *made = nullptr;
  if (!comm || comm->is_closed) return fail(INVALID_USAGE, "the communicator was destroyed or aborted");
  if (Result error = check_no_capture("ncclCommShrink")) return error;
  if (flags & 1) comm->is_stopped = true;
  else if (Result error = check(comm)) return error;
  vector<int> ranks;
  for (int rank = 0; rank < comm->size; rank++)
    if (find(excluded, excluded + n, rank) == excluded + n) ranks.push_back(rank);
    else if (rank == comm->rank) return fail(INVALID_USAGE, "an excluded rank must not call ncclCommShrink");
  return join_part(comm, ranks, -1, made);
}
Result ncclCommFinalize(Comm* comm) {
  if (Result error = check(comm)) return error;
  if (Result error = check_no_capture("ncclCommFinalize")) return error;
  return wait_for(comm, comm->n_begun);
}
Result ncclCommDestroy(Comm* comm) { return close_comm(comm, true); }
Result ncclCommAbort(Comm* comm) { return close_comm(comm, false); }
Result ncclCommGetAsyncError(Comm* comm, Result* error) {
  if (!comm) return fail(INVALID_ARGUMENT, "the communicator is null");
  lock_guard<mutex> held(comm->lock);
  last_error = comm->error_text;
  return *error = comm->error, OK;
}
Result ncclCommCount(const Comm* comm, int* size) { return *size = comm->size, OK; }
Result ncclCommUserRank(const Comm* comm, int* rank) { return *rank = comm->rank, OK; }
Result ncclCommCuDevice(const Comm* comm, int* device) { return *device = comm->device, OK; }

Result ncclGroupStart() { return depth++, OK; }
Result ncclGroupEnd() { return end_group(); }

Result ncclAllReduce(const void* in, void* out, size_t n, int type, int op, Comm* comm, void* stream) {
  return call("AllReduce", in, out, n, n, n, type, op, 0, comm, stream);
}
Result ncclReduce(const void* in, void* out, size_t n, int type, int op, int root, Comm* comm, void* stream) {
  return call("Reduce", in, out, n, comm && comm->rank == root ? n : 0, n, type, op, root, comm, stream);
}
Result ncclBroadcast(const void* in, void* out, size_t n, int type, int root, Comm* comm, void* stream) {
  return call("Broadcast", in, out, comm && comm->rank == root ? n : 0, n, n, type, 0, root, comm, stream);
}
Result ncclBcast(void* buffer, size_t n, int type, int root, Comm* comm, void* stream) {
  return ncclBroadcast(buffer, buffer, n, type, root, comm, stream);
}
Result ncclAllGather(const void* in, void* out, size_t n, int type, Comm* comm, void* stream) {
  return call("AllGather", in, out, n, comm ? n * comm->size : 0, n, type, 0, 0, comm, stream);
}
Result ncclReduceScatter(const void* in, void* out, size_t n, int type, int op, Comm* comm, void* stream) {
  return call("ReduceScatter", in, out, comm ? n * comm->size : 0, n, n, type, op, 0, comm, stream);
}
Result ncclSend(const void* in, size_t n, int type, int peer, Comm* comm, void* stream) {
  return call("Send", in, nullptr, n, 0, n, type, 0, peer, comm, stream);
}
Result ncclRecv(void* out, size_t n, int type, int peer, Comm* comm, void* stream) {
  return call("Recv", nullptr, out, 0, n, n, type, 0, peer, comm, stream);
}

Result ncclRedOpCreatePreMulSum(int* op, void* factor, int type, int residence, Comm* comm) {
  if (Result error = check(comm)) return error;
  double value;
  switch (type) {
    case FLOAT16: value = double(*(_Float16*)factor); break;
    case FLOAT32: value = *(float*)factor; break;
    case FLOAT64: value = *(double*)factor; break;
    case BFLOAT16: value = *(BFloat16*)factor; break;
    default: return fail(INVALID_ARGUMENT, "the double multiplies floating-point types only");
  }
  comm->factors.push_back({type, value});
  return *op = PRE_MUL_SUM + int(comm->factors.size()) - 1, OK;
}
Result ncclRedOpDestroy(int op, Comm* comm) {
  size_t index = op - PRE_MUL_SUM;
  if (!comm || index >= comm->factors.size() || comm->factors[index].first < 0) return fail(INVALID_ARGUMENT, "unknown operation");
  return comm->factors[index].first = -1, OK;
}

Result ncclMemAlloc(void** made, size_t n) { return *made = malloc(n), OK; }
Result ncclMemFree(void* p) { return free(p), OK; }
Result ncclCommRegister(Comm* comm, void* p, size_t n, void** handle) { return *handle = p, check(comm); }
Result ncclCommDeregister(Comm* comm, void* handle) { return check(comm); }
Result ncclCommWindowRegister(Comm* comm, void* p, size_t n, void** window, int flags) { return *window = p, check(comm); }
Result ncclCommWindowDeregister(Comm* comm, void* window) { return check(comm); }

}  // extern "C"
