// A small training program in plain LibTorch: fits a sum of sines. train_lockstep.cpp does the same on two replicas.

#include <torch/torch.h>

#include <iostream>

struct Rows {
  torch::Tensor x, y;
};

Rows make_rows(int part, int parts) {
  const auto x = torch::linspace(-3, 3, 1024).reshape({512, 2}).chunk(parts)[part];
  return {x, torch::sin(x).sum(1, /*keepdim=*/true)};
}

torch::nn::Sequential make_net() {
  return torch::nn::Sequential(torch::nn::Linear(2, 64), torch::nn::Tanh(), torch::nn::Linear(64, 1));
}

int main() {
  torch::manual_seed(1);
  const Rows rows = make_rows(0, 1);
  auto net = make_net();
  torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(0.01));
  auto step = [&](const Rows& mine) {
    auto loss = (net->forward(mine.x) - mine.y).square().mean();
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    return loss.detach();
  };
  for (int k = 0; k <= 200; ++k) {
    auto loss = step(rows);
    if (k % 50 == 0) std::cout << "step " << k << ": " << loss.item<float>() << "\n";
  }
}
