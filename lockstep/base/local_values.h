#pragma once

#include <atomic>
#include <memory_resource>
#include <new>
#include <typeinfo>
#include <utility>

namespace lockstep::detail {

/// At most one value of each type, default-constructed on first access and kept until the end. Finding one takes no
/// lock. Threads may access it concurrently if `memory` allows it; they get the same value.
class LocalValues {
 public:
  explicit LocalValues(std::pmr::memory_resource* memory = std::pmr::new_delete_resource()) : memory_(memory) {}
  ~LocalValues() {
    for (Node* node = first_.load(); node != nullptr;) node->destroy(*std::exchange(node, node->next), memory_);
  }
  LocalValues(const LocalValues&) = delete;
  LocalValues& operator=(const LocalValues&) = delete;

  /// Null if `get` was never called for it.
  template <class T>
  T* find() const {
    return find_from<T>(first_.load(std::memory_order_acquire));
  }

  template <class T>
  T& get() {
    Node* seen = first_.load(std::memory_order_acquire);
    if (T* const found = find_from<T>(seen)) return *found;
    auto* const made = new (memory_->allocate(sizeof(Holder<T>), alignof(Holder<T>))) Holder<T>;
    made->next = seen;
    while (!first_.compare_exchange_weak(made->next, made, std::memory_order_acq_rel, std::memory_order_acquire)) {
      T* const theirs = find_from<T>(made->next);
      if (theirs == nullptr) continue;
      Holder<T>::destroy_it(*made, memory_);
      return *theirs;
    }
    return made->value;
  }

 private:
  struct Node {
    const std::type_info* type;
    void (*destroy)(Node& node, std::pmr::memory_resource* memory);
    Node* next = nullptr;
  };
  template <class T>
  struct Holder : Node {
    Holder() : Node{&typeid(T), &Holder::destroy_it} {}
    static void destroy_it(Node& node, std::pmr::memory_resource* memory) {
      auto* const self = static_cast<Holder*>(&node);
      self->~Holder();
      memory->deallocate(self, sizeof(Holder), alignof(Holder));
    }
    T value{};
  };

  template <class T>
  static T* find_from(Node* node) {
    for (; node != nullptr; node = node->next)
      if (*node->type == typeid(T)) return &static_cast<Holder<T>*>(node)->value;
    return nullptr;
  }

  std::pmr::memory_resource* memory_;
  std::atomic<Node*> first_{nullptr};
};

}  // namespace lockstep::detail
