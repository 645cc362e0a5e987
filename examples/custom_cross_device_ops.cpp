// You can write your own class to move values between replicas, for special hardware or to observe what happens. This
// one adds from the last replica to the first and counts its calls.

#include <lockstep/lockstep.h>
#include <torch/types.h>

#include <iostream>

namespace ls = lockstep;

class FromTheBack : public ls::CrossDeviceOps {
 public:
  ls::Mirrored<torch::Tensor> reduce(ls::ReduceOp op, const ls::PerReplica<torch::Tensor>& value,
                                     const ls::Devices& destinations, const ls::CommunicationOptions&) override {
    ++calls;
    torch::Tensor sum = value[value.size() - 1];
    for (std::size_t k = value.size() - 1; k > 0; --k) sum = sum + value[k - 1];
    if (op == ls::ReduceOp::Mean) sum = sum / static_cast<double>(value.size());
    return broadcast(sum, destinations);
  }

  int calls = 0;
};

int main() {
  const auto ops = std::make_shared<FromTheBack>();
  ls::MirroredStrategy strategy({.devices = ls::cpus(2), .cross_device_ops = ops});

  auto number = [] { return torch::full({}, ls::get_replica_context().replica_id_in_sync_group() + 1.0); };
  bool all_called = true;
  auto expect = [&](const char* what, const torch::Tensor& result, float expected) {
    std::cout << what << ": " << result.item<float>() << ", after " << ops->calls << " calls\n";
    all_called = all_called && ops->calls > 0 && result.item<float>() == expected;
    ops->calls = 0;
  };

  expect("reduce", strategy.reduce(ls::ReduceOp::Sum, strategy.run(number)), 3);

  auto means = strategy.run([&] { return ls::get_replica_context().all_reduce(ls::ReduceOp::Mean, number()); });
  expect("all_reduce", means[1], 1.5);

  auto total = strategy.make_variable(torch::zeros({}), {.name = "total", .aggregation = ls::Aggregation::Sum});
  strategy.run([&] { total.assign_add(number()); });
  expect("aggregated assign", total.read(), 3);

  return all_called ? 0 : 1;
}
