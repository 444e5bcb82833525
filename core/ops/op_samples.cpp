#include "core/ops/op_samples.h"

#include <charconv>

#include "core/ops/op_support.h"

namespace muster::ops {

class SampleReader {
 public:
  SampleReader(std::string_view text, const Schema& schema, DType floating, uint64_t seed)
      : text_(text), schema_(schema), floating_(floating), seed_(seed) {}

  Sample read() {
    read_values();
    // Defaults stand for what is left out at the end.
    for (size_t i = sample_.values_.size(); i < schema_.arguments.size(); ++i) {
      const std::optional<std::string>& text = schema_.arguments[i].default_text;
      if (!text) break;
      text_ = *text;
      at_ = 0;
      read_values();
    }
    return std::move(sample_);
  }

 private:
  void read_values() {
    skip_blanks();
    while (at_ < text_.size()) {
      sample_.values_.push_back(value());
      skip_blanks();
      if (at_ < text_.size()) expect(',');
      skip_blanks();
    }
  }

  Value value() {
    skip_blanks();
    check(at_ < text_.size(), "a value");
    if (text_[at_] == '[' || text_[at_] == '(') return list();
    if (text_[at_] == '"' || text_[at_] == '\'') return quoted();
    const std::string_view word = take_word();
    if (at_ < text_.size() && text_[at_] == '(') {
      sample_.tensors_.push_back(tensor(word));
      return Value(sample_.tensors_.back());
    }
    if (word == "None") return Value();
    if (word == "true" || word == "True") return Value(true);
    if (word == "false" || word == "False") return Value(false);
    if (const Result<DType> dtype = parse_dtype(word); dtype.ok()) return Value(dtype.value());
    return number(word);
  }

  Value list() {
    const char close = text_[at_++] == '[' ? ']' : ')';
    skip_blanks();
    std::vector<Tensor> tensors;
    DimVector ints;
    while (!accept(close)) {
      const Value item = value();
      if (item.is_tensor()) {
        tensors.push_back(item.tensor());
      } else {
        ints.push_back(item.integer());
      }
      skip_blanks();
      accept(',');
      skip_blanks();
    }
    const size_t position = sample_.values_.size();
    const bool of_tensors = position < schema_.arguments.size() &&
                            schema_.arguments[position].type == ArgumentType::kTensor;
    if (of_tensors) {
      // Elements were kept one by one; the list keeps them now.
      for (size_t i = 0; i < tensors.size(); ++i) sample_.tensors_.pop_back();
      sample_.tensor_lists_.push_back(std::move(tensors));
      return Value(sample_.tensor_lists_.back());
    }
    sample_.int_lists_.push_back(ints);
    return Value(sample_.int_lists_.back());
  }

  Value quoted() {
    const char quote = text_[at_++];
    const size_t end = text_.find(quote, at_);
    check(end != std::string_view::npos, "a closing quote");
    sample_.texts_.emplace_back(text_.substr(at_, end - at_));
    at_ = end + 1;
    return Value(std::string_view(sample_.texts_.back()));
  }

  Value number(std::string_view word) {
    const char* last = word.data() + word.size();
    int64_t integer = 0;
    if (const auto [end, error] = std::from_chars(word.data(), last, integer);
        error == std::errc() && end == last) {
      return Value(integer);
    }
    double floating = 0;
    const auto [end, error] = std::from_chars(word.data(), last, floating);
    check(error == std::errc() && end == last, "a number");
    return Value(floating);
  }

  Tensor tensor(std::string_view kind) {
    expect('(');
    DimVector sizes;
    while (!accept(')')) {
      sizes.push_back(number(take_word()).integer());
      accept(',');
      skip_blanks();
    }
    Tensor made = filled(kind, sizes);
    if (text_.substr(at_, 2) == ".t") {
      at_ += 2;
      made.impl()->set_layout(transpose_layout(made.layout(), -1, -2));
    }
    return made;
  }

  Tensor filled(std::string_view kind, Dims sizes) {
    const uint64_t stream = at_;
    const auto uniform = [&](int64_t i) {
      const uint32_t word = philox4x32(seed_, stream, static_cast<uint64_t>(i))[0];
      return (static_cast<double>(word) + 0.5) * 0x1p-32;
    };
    const char first = kind.empty() ? ' ' : kind[0];
    struct Range {
      char letter;
      double low, high;
    };
    for (const Range& r :
         {Range{'f', -2, 2}, Range{'p', 0.5, 2}, Range{'u', 0, 1}, Range{'q', 1.1, 3}}) {
      if (r.letter != first) continue;
      return fill<double>(sizes, floating_,
                          [&](int64_t i) { return r.low + (r.high - r.low) * uniform(i); });
    }
    if (first == 'b')
      return fill<int64_t>(sizes, DType::kBool, [&](int64_t i) { return uniform(i) < 0.5; });
    check(first == 'i' || first == 'x', "f, p, u, q, i, b or x before the sizes");
    const int64_t low = first == 'i' ? -3 : 0;
    const int64_t count = first == 'i' ? 7 : number(kind.substr(1)).integer();
    return fill<int64_t>(sizes, DType::kI64, [&](int64_t i) {
      return low + static_cast<int64_t>(uniform(i) * static_cast<double>(count));
    });
  }

  template <typename T, typename Element>
  Tensor fill(Dims sizes, DType dtype, const Element& element) {
    Tensor values = scratch(sizes, dtype_of<T>);
    for (int64_t i = 0; i < values.numel(); ++i) values.data<T>()[i] = static_cast<T>(element(i));
    return cast_to(values, dtype);
  }

  std::string_view take_word() {
    skip_blanks();
    const size_t start = at_;
    while (at_ < text_.size() &&
           std::string_view(",()[] \"").find(text_[at_]) == std::string_view::npos) {
      ++at_;
    }
    check(at_ > start, "a word");
    return text_.substr(start, at_ - start);
  }

  void skip_blanks() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
  }
  bool accept(char c) {
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) { check(accept(c), std::string_view(&c, 1)); }
  void check(bool holds, std::string_view wanted) const {
    MUSTER_CHECK(holds, ErrorCode::kInvalidArgument,
                 "sample: {} must stand at column {}; got \"{}\"", wanted, at_ + 1, text_);
  }

  std::string_view text_;
  const Schema& schema_;
  size_t at_ = 0;
  DType floating_;
  uint64_t seed_;
  Sample sample_;
};

Sample Sample::parse(std::string_view text, const Schema& schema, DType floating, uint64_t seed) {
  Sample sample = SampleReader(text, schema, floating, seed).read();
  MUSTER_CHECK(sample.values_.size() == schema.arguments.size(), ErrorCode::kInvalidArgument,
               "sample of {}: one value for each of {} arguments; got \"{}\"", schema.name,
               schema.arguments.size(), text);
  return sample;
}

std::vector<Tensor> Sample::tensors() const {
  std::vector<Tensor> out;
  for (const Value& value : values_) {
    if (value.is_tensor()) out.push_back(value.tensor());
    if (value.is_tensor_list()) {
      for (const Tensor& tensor : value.tensors()) out.push_back(tensor);
    }
  }
  return out;
}
}  // namespace muster::ops
