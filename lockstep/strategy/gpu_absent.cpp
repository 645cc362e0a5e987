#include "lockstep/strategy/gpu.h"
#include "lockstep/strategy/gpu_not_built.h"

namespace lockstep::gpu {

bool is_built() { return false; }
int visible() { return 0; }
void use_deterministic_algorithms() { throw_not_built(); }
at::Generator make_generator(at::Device, std::uint64_t) { throw_not_built(); }
std::uint64_t numbers_drawn(const at::Generator&) { return 0; }
std::uint64_t shared_numbers_drawn() { return 0; }
void keep_for_this_stream(const at::Tensor&) {}
std::unique_ptr<ReplicaStreams> make_streams(const std::vector<at::Device>&) { throw_not_built(); }
bool reach_each_other(const std::vector<at::Device>&) { return false; }
at::Tensor bring_here(const at::Tensor& tensor, at::Device) { return tensor; }
at::Tensor pull_elements(const at::Tensor&, std::int64_t, std::int64_t, at::Device) { throw_not_built(); }
void push_elements(const at::Tensor&, const at::Tensor&, std::int64_t, std::int64_t) { throw_not_built(); }
std::shared_ptr<Graph> make_graph(at::Device, const std::vector<ReplicaGenerators>&) { throw_not_built(); }
void copy_all(const std::vector<at::Tensor>&, const std::vector<at::Tensor>&) { throw_not_built(); }
std::shared_ptr<Arrival> mark_this_stream(at::Device) { throw_not_built(); }
at::Tensor make_pinned(at::IntArrayRef, at::ScalarType) { throw_not_built(); }
std::unique_ptr<CopyStream> make_copy_stream(at::Device) { throw_not_built(); }
DefaultGeneratorScope::DefaultGeneratorScope(const at::Generator&) { throw_not_built(); }
DefaultGeneratorScope::~DefaultGeneratorScope() = default;

}  // namespace lockstep::gpu
