#include "lockstep/comm/coordination/reception.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>

#include "lockstep/comm/socket.h"

namespace lockstep::coordination {
namespace {

using Clock = Deadline::Clock;
using std::chrono::milliseconds;

constexpr std::chrono::seconds kTimeToProve(5);
constexpr milliseconds kLook(20);      // how often sockets that were passed on are checked: poll() does not report them
constexpr int kMostAtOnce = 256;       // accepted between two checks
constexpr milliseconds kRoomWait(20);  // until the system may have room again

// The kernel never reuses it.
std::uint64_t cookie_of(int socket) {
  std::uint64_t cookie = 0;
  socklen_t size = sizeof cookie;
  return ::getsockopt(socket, SOL_SOCKET, SO_COOKIE, &cookie, &size) == 0 ? cookie : 0;
}

}  // namespace

Reception::Reception(Descriptor listener, Places places, std::function<void(int)> pass_on)
    : listener_(std::move(listener)),
      pass_on_(std::move(pass_on)),
      stop_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
      places_(std::move(places)),
      closed_(own_name(listener_.get())) {}

void Reception::start() {
  thread_ = std::thread([this] { run(); });
}

void Reception::stop() {
  const std::uint64_t one = 1;
  (void)!::write(stop_.get(), &one, sizeof one);
  if (thread_.joinable()) thread_.join();
}

void Reception::proved(const std::string& name) {
  const std::lock_guard lock(mutex_);
  std::erase_if(visitors_, [&](const Visitor& visitor) { return visitor.name == name; });
}

void Reception::set_places(Places places) {
  const std::lock_guard lock(mutex_);
  places_ = std::move(places);
}

void Reception::run() {
  std::vector<pollfd> polled;
  for (;;) {
    std::unique_lock lock(mutex_);
    polled.assign({{stop_.get(), POLLIN, 0}, {is_full_ ? -1 : listener_.get(), POLLIN, 0}});
    for (const Visitor& visitor : visitors_) {
      if (visitor.socket) polled.push_back({visitor.socket.get(), POLLIN, 0});
    }
    const int wait = is_full_ ? kRoomWait.count() : visitors_.empty() ? -1 : kLook.count();
    lock.unlock();
    ::poll(polled.data(), polled.size(), wait);
    if (polled[0].revents != 0) return;
    lock.lock();
    std::vector<int> spoke;
    std::erase_if(visitors_, [&](Visitor& visitor) { return !look_at(visitor, spoke); });
    accept_all(spoke);
    lock.unlock();
    for (const int socket : spoke) pass_on_(socket);
  }
}

void Reception::accept_all(std::vector<int>& spoke) {
  is_full_ = false;
  for (int i = 0; i < kMostAtOnce && !is_full_; ++i) {
    Arrival arrival = accept_from(listener_.get());
    is_full_ = arrival.no_room;
    if (!arrival.socket) return;
    Visitor visitor;
    visitor.name = to_string(arrival.from);
    visitor.host = host_of(arrival.from);
    visitor.number = arrival.socket.get();
    visitor.cookie = cookie_of(visitor.number);
    visitor.socket = std::move(arrival.socket);
    if (!look_at(visitor, spoke)) continue;
    if (const auto index = one_to_close(visitors_, visitor.host, places_)) {
      closed_.add(visitors_[*index].host);
      close(visitors_[*index]);
      visitors_.erase(visitors_.begin() + static_cast<std::ptrdiff_t>(*index));
    }
    visitors_.push_back(std::move(visitor));
  }
}

bool Reception::look_at(Visitor& visitor, std::vector<int>& spoke) {
  if (!visitor.socket) {
    if (cookie_of(visitor.number) != visitor.cookie) return false;  // its new owner closed it
  } else {
    char byte = 0;
    const ssize_t count = ::recv(visitor.socket.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    if (count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR)) return false;
    if (count > 0) {
      visitor.has_spoken = true;
      const int on = 1;
      ::setsockopt(visitor.number, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
      spoke.push_back(visitor.socket.release());
    }
  }
  if (Clock::now() - visitor.since < kTimeToProve) return true;
  closed_.add(visitor.host);
  close(visitor);
  return false;
}

void Reception::close(Visitor& visitor) {
  if (visitor.socket) return void(visitor.socket.close());
  // Its owner may close it at any time, and the number may then refer to another file. A copy cannot change.
  const Descriptor copy(::fcntl(visitor.number, F_DUPFD_CLOEXEC, 0));
  if (copy && cookie_of(copy.get()) == visitor.cookie) ::shutdown(copy.get(), SHUT_RDWR);
}

}  // namespace lockstep::coordination
