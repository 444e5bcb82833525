#pragma once
/// Where a tensor's bytes live. `kMeta` has shapes only.

#include <fmt/format.h>

#include <cstdint>
#include <string>

namespace muster {

enum class DeviceType : uint8_t { kCpu, kCuda, kMeta };
inline constexpr int kNumDeviceTypes = 3;

struct Device {
  DeviceType type = DeviceType::kCpu;
  int8_t index = 0;
  bool operator==(const Device&) const = default;
};

inline constexpr Device kCpuDevice{DeviceType::kCpu, 0};
inline constexpr Device kMetaDevice{DeviceType::kMeta, 0};

/// "cpu", "cuda:1", "meta".
inline std::string to_string(Device device) {
  if (device.type == DeviceType::kCpu) return "cpu";
  if (device.type == DeviceType::kMeta) return "meta";
  return fmt::format("cuda:{}", device.index);
}

}  // namespace muster
