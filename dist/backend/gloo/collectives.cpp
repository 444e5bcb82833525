#include "dist/backend/gloo/collectives.h"

#include <gloo/allgather.h>
#include <gloo/allgatherv.h>
#include <gloo/broadcast.h>
#include <gloo/common/error.h>
#include <gloo/scatter.h>

#include <algorithm>
#include <array>

#include "dist/group/reduce.h"

namespace muster::wire {
namespace {
// A segment of a piece: large enough for the sockets, small enough that the pieces of a few ranks
// stay in the cache until they are reduced.
constexpr int64_t kSegmentNbytes = 1 << 20;
constexpr uint64_t kOwnSlots = uint64_t{0xf0} << 56;  // Gloo's have a top byte below 0x10

std::byte* bytes_of(const Tensor& tensor) { return static_cast<std::byte*>(tensor.data_ptr()); }

uint32_t tag_of(const CollectiveRequest& request) {
  return static_cast<uint32_t>(request.descriptor.seq);
}

// Transfers of one operation; taken away from the connections when it ends early.
class Transfers {
 public:
  explicit Transfers(Lane& lane, uint32_t tag) : lane_(lane), tag_(tag) {}
  ~Transfers() {
    for (const TransferPtr& transfer : all_) transfer->cancel();
  }
  Transfers(const Transfers&) = delete;
  Transfers& operator=(const Transfers&) = delete;

  TransferPtr send(int group_rank, int phase, int64_t part, std::byte* memory, int64_t nbytes) {
    return post(&Channel::post_send, group_rank, phase, part, memory, nbytes);
  }
  TransferPtr receive(int group_rank, int phase, int64_t part, std::byte* memory, int64_t nbytes) {
    return post(&Channel::post_receive, group_rank, phase, part, memory, nbytes);
  }
  void wait(const std::vector<TransferPtr>& some) {
    const auto done = [&] {
      return std::all_of(some.begin(), some.end(), [](const auto& t) { return t->done(); });
    };
    if (!lane_.channel.wait(some, done)) throw ::gloo::IoException("the group has failed");
  }
  void wait_all() { wait(all_); }

 private:
  using Post = void (Channel::*)(uint64_t, const TransferPtr&);
  TransferPtr post(Post how, int group_rank, int phase, int64_t part, std::byte* memory,
                   int64_t nbytes) {
    const uint64_t slot = kOwnSlots | static_cast<uint64_t>(tag_) << 24 |
                          static_cast<uint64_t>(phase) << 22 | static_cast<uint64_t>(part);
    MUSTER_ASSERT(part < (1 << 22), "gloo: at most 4194304 parts; got {}", part);
    all_.push_back(std::make_shared<Transfer>(lane_.global_ranks[static_cast<size_t>(group_rank)],
                                              memory, nbytes));
    (lane_.channel.*how)(slot, all_.back());
    return all_.back();
  }

  Lane& lane_;
  const uint32_t tag_;
  std::vector<TransferPtr> all_;
};

// The stretch of a buffer that a rank reduces.
struct Piece {
  int64_t begin = 0;
  int64_t end = 0;  ///< in elements
};

// Reduces one piece on one rank: the others send theirs, segment by segment, two segments ahead.
class PieceReducer {
 public:
  PieceReducer(Lane& lane, Transfers& transfers, ReduceOp op, DType dtype)
      : lane_(lane),
        transfers_(transfers),
        op_(op),
        dtype_(dtype),
        item_(item_nbytes(dtype)),
        segment_(kSegmentNbytes / item_) {}

  void contribute(int owner, const std::byte* input, Piece piece) {
    each_segment(piece, [&](int64_t part, int64_t at, int64_t count) {
      transfers_.send(owner, 0, part, const_cast<std::byte*>(input) + at * item_, count * item_);
    });
  }

  /// `on_segment(part, at, count)` is called when elements [at, at + count) of `output` are final.
  template <typename OnSegment>
  void reduce(const std::byte* input, std::byte* output, Piece piece, const OnSegment& on_segment) {
    const int64_t stride = segment_ * item_;
    const auto needed = static_cast<size_t>(2 * lane_.size() * stride);
    if (lane_.size() > 1 && lane_.scratch.size() < needed) lane_.scratch.resize(needed);
    std::array<std::vector<TransferPtr>, 2> arriving;
    const auto memory_of = [&](int64_t part, int rank) {
      return lane_.scratch.data() + (part % 2 * lane_.size() + rank) * stride;
    };
    const auto expect = [&](int64_t part) {
      const int64_t at = piece.begin + part * segment_;
      if (at >= piece.end) return;
      const int64_t nbytes = std::min(segment_, piece.end - at) * item_;
      auto& list = arriving[static_cast<size_t>(part % 2)];
      list.clear();
      for (int rank = 0; rank < lane_.size(); ++rank) {
        if (rank == lane_.group_rank) continue;
        list.push_back(transfers_.receive(rank, 0, part, memory_of(part, rank), nbytes));
      }
    };
    expect(0);
    expect(1);
    const int64_t input_shift = piece.begin;
    each_segment(piece, [&](int64_t part, int64_t at, int64_t count) {
      transfers_.wait(arriving[static_cast<size_t>(part % 2)]);
      std::vector<const std::byte*> sources;
      for (int rank = 0; rank < lane_.size(); ++rank) {
        sources.push_back(rank == lane_.group_rank ? input + at * item_ : memory_of(part, rank));
      }
      std::byte* to = output + (at - input_shift) * item_;
      reduce_buffers(op_, dtype_, to, sources, count);
      expect(part + 2);
      on_segment(part, at, count);
    });
  }

  template <typename Body>
  void each_segment(Piece piece, const Body& body) const {
    int64_t part = 0;
    for (int64_t at = piece.begin; at < piece.end; at += segment_)
      body(part++, at, std::min(segment_, piece.end - at));
  }

 private:
  Lane& lane_;
  Transfers& transfers_;
  const ReduceOp op_;
  const DType dtype_;
  const int64_t item_;
  const int64_t segment_;
};

void all_reduce(Lane& lane, const CollectiveRequest& request) {
  const Tensor& tensor = request.outputs[0];
  std::byte* memory = bytes_of(tensor);
  const int64_t item = item_nbytes(tensor.dtype());
  const int64_t each = (tensor.numel() + lane.size() - 1) / lane.size();
  const auto piece_of = [&](int rank) {
    return Piece{std::min(tensor.numel(), each * rank),
                 std::min(tensor.numel(), each * (rank + 1))};
  };
  Transfers transfers(lane, tag_of(request));
  PieceReducer reducer(lane, transfers, request.descriptor.op, tensor.dtype());
  for (int rank = 0; rank < lane.size(); ++rank) {
    if (rank == lane.group_rank) continue;
    reducer.contribute(rank, memory, piece_of(rank));
    // The result of a segment leaves its owner when all contributions are in, ours among them, so
    // it may overwrite what we contributed.
    reducer.each_segment(piece_of(rank), [&](int64_t part, int64_t at, int64_t count) {
      transfers.receive(rank, 1, part, memory + at * item, count * item);
    });
  }
  const Piece own = piece_of(lane.group_rank);
  reducer.reduce(memory, memory + own.begin * item, own,
                 [&](int64_t part, int64_t at, int64_t count) {
                   for (int rank = 0; rank < lane.size(); ++rank) {
                     if (rank == lane.group_rank) continue;
                     transfers.send(rank, 1, part, memory + at * item, count * item);
                   }
                 });
  transfers.wait_all();
}

void reduce_scatter(Lane& lane, const CollectiveRequest& request) {
  const Tensor& output = request.outputs[0];
  const std::byte* input = bytes_of(request.inputs[0]);
  const int64_t each = output.numel();
  Transfers transfers(lane, tag_of(request));
  PieceReducer reducer(lane, transfers, request.descriptor.op, output.dtype());
  for (int rank = 0; rank < lane.size(); ++rank) {
    if (rank != lane.group_rank) reducer.contribute(rank, input, {each * rank, each * (rank + 1)});
  }
  const int64_t begin = each * lane.group_rank;
  reducer.reduce(input, bytes_of(output), {begin, begin + each}, [](int64_t, int64_t, int64_t) {});
  transfers.wait_all();
}

void reduce(Lane& lane, const CollectiveRequest& request) {
  const Tensor& tensor = request.outputs[0];
  Transfers transfers(lane, tag_of(request));
  PieceReducer reducer(lane, transfers, request.descriptor.op, tensor.dtype());
  const Piece whole{0, tensor.numel()};
  if (lane.group_rank == request.root) {
    reducer.reduce(bytes_of(tensor), bytes_of(tensor), whole, [](int64_t, int64_t, int64_t) {});
  } else {
    reducer.contribute(request.root, bytes_of(tensor), whole);
  }
  transfers.wait_all();
}

void all_gather(Lane& lane, const CollectiveRequest& request) {
  const Tensor& input = request.inputs[0];
  const std::vector<Tensor>& outputs = request.outputs;
  if (outputs.size() == 1) {
    ::gloo::AllgatherOptions options(lane.gloo);
    options.setInput(bytes_of(input), static_cast<size_t>(input.nbytes()));
    options.setOutput(bytes_of(outputs[0]), static_cast<size_t>(outputs[0].nbytes()));
    options.setTag(tag_of(request));
    return ::gloo::allgather(options);
  }
  // Ranks give pieces of different sizes, each cut over several outputs.
  const size_t per_rank = outputs.size() / static_cast<size_t>(lane.size());
  std::vector<size_t> counts(static_cast<size_t>(lane.size()));
  for (size_t i = 0; i < outputs.size(); ++i)
    counts[i / per_rank] += static_cast<size_t>(outputs[i].nbytes());
  size_t total = 0;
  for (const size_t count : counts) total += count;
  if (total == 0) return;
  std::vector<std::byte> gathered(total);
  ::gloo::AllgathervOptions options(lane.gloo);
  options.setInput(bytes_of(input), static_cast<size_t>(input.nbytes()));
  options.setOutput(gathered.data(), counts);
  options.setTag(tag_of(request));
  ::gloo::allgatherv(options);
  const std::byte* from = gathered.data();
  for (const Tensor& output : outputs) {
    if (output.nbytes() > 0)
      std::memcpy(output.data_ptr(), from, static_cast<size_t>(output.nbytes()));
    from += output.nbytes();
  }
}

void broadcast(Lane& lane, const CollectiveRequest& request) {
  const Tensor& tensor = request.outputs[0];
  ::gloo::BroadcastOptions options(lane.gloo);
  options.setOutput(bytes_of(tensor), static_cast<size_t>(tensor.nbytes()));
  options.setRoot(request.root);
  options.setTag(tag_of(request));
  ::gloo::broadcast(options);
}

void scatter(Lane& lane, const CollectiveRequest& request) {
  const auto nbytes = static_cast<size_t>(request.outputs[0].nbytes());
  ::gloo::ScatterOptions options(lane.gloo);
  std::vector<std::byte*> inputs;
  for (const Tensor& input : request.inputs) inputs.push_back(bytes_of(input));
  if (!inputs.empty()) options.setInputs(inputs, nbytes);
  options.setOutput(bytes_of(request.outputs[0]), nbytes);
  options.setRoot(request.root);
  options.setTag(tag_of(request));
  ::gloo::scatter(options);
}

void copy_own(const Tensor& output, const Tensor& input) {
  if (output.nbytes() > 0 && output.data_ptr() != input.data_ptr())
    std::memmove(output.data_ptr(), input.data_ptr(), static_cast<size_t>(output.nbytes()));
}

// Straight into the outputs: Gloo's gather and alltoallv want one buffer, and so a copy.
void exchange(Lane& lane, const CollectiveRequest& request) {
  const bool is_gather = request.descriptor.kind == CollectiveKind::kGather;
  Transfers transfers(lane, tag_of(request));
  const auto own = static_cast<size_t>(lane.group_rank);
  if (!request.outputs.empty()) copy_own(request.outputs[own], request.inputs[is_gather ? 0 : own]);
  for (int step = 1; step < lane.size(); ++step) {
    const int rank = (lane.group_rank + step) % lane.size();
    const auto at = static_cast<size_t>(rank);
    if (!request.outputs.empty()) {
      const Tensor& output = request.outputs[at];
      if (output.nbytes() > 0) transfers.receive(rank, 0, 0, bytes_of(output), output.nbytes());
    }
    if (is_gather && rank != request.root) continue;
    const Tensor& input = request.inputs[is_gather ? 0 : at];
    if (input.nbytes() > 0) transfers.send(rank, 0, 0, bytes_of(input), input.nbytes());
  }
  transfers.wait_all();
}
}  // namespace

void run_collective(Lane& lane, const CollectiveRequest& request) {
  switch (request.descriptor.kind) {
    case CollectiveKind::kAllReduce:
      return all_reduce(lane, request);
    case CollectiveKind::kReduceScatter:
      return reduce_scatter(lane, request);
    case CollectiveKind::kReduce:
      return reduce(lane, request);
    case CollectiveKind::kAllGather:
      return all_gather(lane, request);
    case CollectiveKind::kBroadcast:
      return broadcast(lane, request);
    case CollectiveKind::kScatter:
      return scatter(lane, request);
    case CollectiveKind::kGather:
    case CollectiveKind::kAllToAll:
      return exchange(lane, request);
    case CollectiveKind::kBarrier:
    case CollectiveKind::kSend:
    case CollectiveKind::kRecv:
      return;
  }
}

}  // namespace muster::wire
