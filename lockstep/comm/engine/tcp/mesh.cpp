#include "lockstep/comm/engine/tcp/link.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <map>
#include <optional>
#include <thread>

#include "lockstep/base/logging.h"
#include "lockstep/base/random_bytes.h"
#include "lockstep/base/text.h"
#include "lockstep/comm/disagreement.h"
#include "lockstep/comm/socket.h"
#include "lockstep/comm/unproven.h"

namespace lockstep::engine {
namespace {

using Token = std::array<char, 32>;  // random bytes

struct Hello {
  std::uint32_t magic;
  std::int32_t from;
  std::int32_t to;
  std::int32_t channel;
  Token token;  // token of the worker to which this is sent
  // Address of the sender's own token, and whether it could read the receiver's.
  std::int64_t process;
  std::uint64_t token_address;
  std::uint64_t reads;
};
static_assert(sizeof(Hello) == 72);

constexpr std::uint32_t kMagic = 0x4c534534;  // LSE4
constexpr auto kHelloWait = std::chrono::seconds(5);
// How often it checks whether the job has failed.
constexpr Deadline::Clock::duration kNewsInterval = std::chrono::milliseconds(50);
constexpr auto kCallAgain = std::chrono::milliseconds(10);  // after a connection that was closed without an answer
constexpr int kMostAtOnce = 256;                            // connections accepted between two looks at those that wait

struct Card {  // a worker's entry in the store: "127.0.0.1:4711 " and the token
  std::string name;
  Token token;
};

class Mesh {
 public:
  explicit Mesh(const EngineOptions& options) : options_(options), connections_(options.channels) {
    for (auto& channel : connections_) channel.resize(static_cast<std::size_t>(options.workers));
    std::vector<std::string> hosts;
    for (const std::string& host : options.hosts) {
      const auto found = look_up({host, 1});
      for (int channel = 0; !found.empty() && channel < options.channels; ++channel)
        hosts.push_back(host_of(found.front()));
    }
    places_ = places_for(hosts);
  }

  std::vector<std::vector<Connection>> connect() {
    if (options_.workers == 1) return std::move(connections_);
    const Address here{options_.address, static_cast<std::uint16_t>(options_.port)};
    const Descriptor listener = hold_port(
        here, {.name = "the data port " + to_string(here),
               .code_if_taken = Code::AlreadyExists,
               .help_if_taken = "stop the program that holds it, or set data_port to a different one (0: any)",
               .help_with_host = "set bind_address to an address of this machine"});
    options_.store.set(key(options_.rank), own_name(listener.get()) + " " + random_bytes(sizeof(Token)));
    own_ = card_of(options_.rank);
    closed_.emplace("the data port " + own_.name);
    // Every worker calls lower ranks and answers higher ones; worker 0 answers at once, so there is no circular wait.
    for (int rank = 0; rank < options_.rank; ++rank)
      for (int channel = 0; channel < options_.channels; ++channel) call(rank, channel);
    answer_calls(listener.get());
    return std::move(connections_);
  }

 private:
  struct Caller : Unproven {
    Descriptor socket = {};
    Deadline deadline = Deadline::after(kHelloWait);
    Hello hello{};
    std::size_t read = 0;
  };

  std::string key(int rank) const { return str(options_.prefix, "/data/", rank); }

  const Card& card_of(int rank) {
    if (const auto found = cards_.find(rank); found != cards_.end()) return found->second;
    const std::string text = options_.store.get(key(rank), options_.connect);
    const std::size_t space = text.find(' ');
    Card card{text.substr(0, space), {}};
    if (space == std::string::npos || text.size() - space - 1 != card.token.size())
      throw DataLoss(errors::kStranger,
                     {.what = str("the store holds no address of worker ", rank, "'s data engine but \"", text, "\""),
                      .help = "give every engine of a job a prefix of its own"});
    std::copy(text.begin() + static_cast<std::ptrdiff_t>(space) + 1, text.end(), card.token.begin());
    return cards_.emplace(rank, card).first->second;
  }

  Hello hello_to(int rank, int channel) {
    const auto here = reinterpret_cast<std::uintptr_t>(&own_.token);
    return {kMagic, options_.rank, rank, channel, card_of(rank).token, ::getpid(), here, 0};
  }

  // Whether a worker is a process of this machine whose memory can be read. Those with another address may be on the
  // same machine too, but an explicit port means that the network is to be used.
  bool can_read(int socket, const Hello& hello) {
    const auto host = [](const std::string& name) { return name.substr(0, name.rfind(':')); };
    if (!options_.in_place || host(own_name(socket)) != host(peer_name(socket))) return false;
    Token seen{};
    return read_memory(static_cast<pid_t>(hello.process), hello.token_address, seen.data(), seen.size()) &&
           seen == card_of(hello.from).token;
  }

  void call(int rank, int channel) {
    const Hello hello = hello_to(rank, channel);
    const std::string& name = card_of(rank).name;
    const Deadline reach =
        Deadline::after(std::min(options_.connect.remaining(), Deadline::Clock::duration(options_.reach)));
    Descriptor socket;
    Hello answer{};
    // A flood at that port may have pushed this connection out before its hello arrived: it is closed without an answer.
    while (!is_answered(socket = connect_to(parse_address(name), reach), hello, answer)) {
      if (!socket || reach.expired())
        throw_missing(str("worker ", rank, "'s data engine at ", name, " does not answer"));
      options_.store.check();
      std::this_thread::sleep_for(kCallAgain);
    }
    if (!is_known(answer, rank, channel))
      throw Unavailable(errors::kStranger,
                        {.what = str("what answers at ", name, " is not worker ", rank, "'s data engine"),
                         .help = "check that nothing else listens at that address and that all workers use one store"});
    const std::uint8_t both_read = answer.reads != 0 && can_read(socket.get(), answer) ? 1 : 0;
    if (!write_all(socket.get(), &both_read, 1, options_.connect)) throw_missing(str("worker ", rank, " is gone"));
    keep({std::move(socket), name, both_read != 0 ? static_cast<pid_t>(answer.process) : 0}, answer);
  }

  bool is_answered(const Descriptor& socket, const Hello& hello, Hello& answer) const {
    return socket && write_all(socket.get(), &hello, sizeof hello, options_.connect) && await_bytes(socket.get()) &&
           read_all(socket.get(), &answer, sizeof answer, options_.connect);
  }

  // The other worker may be frozen, and the job has then failed long before the deadline.
  bool await_bytes(int socket) const {
    while (!is_ready(socket, POLLIN, next_news())) {
      options_.store.check();
      if (options_.connect.expired()) return false;
    }
    return true;
  }
  Deadline next_news() const { return Deadline::after(std::min(options_.connect.remaining(), kNewsInterval)); }

  void answer_calls(int listener) {
    std::vector<Caller> callers;
    bool is_full = false;
    while (!missing().empty()) {
      std::vector<pollfd> polled{{is_full ? -1 : listener, POLLIN, 0}};
      for (const Caller& caller : callers) polled.push_back({caller.socket.get(), POLLIN, 0});
      ::poll(polled.data(), polled.size(), poll_milliseconds(next_news()));
      options_.store.check();
      if (options_.connect.expired())
        throw_missing(
            str(workers_text(missing()), " did not connect to worker ", options_.rank, "'s data port ", own_.name));
      for (std::size_t i = 0; i < callers.size(); ++i) {
        if (polled[i + 1].revents != 0) listen_to(callers[i]);
        if (callers[i].socket && callers[i].deadline.expired()) drop(callers[i]);
      }
      std::erase_if(callers, [](const Caller& caller) { return !caller.socket; });
      is_full = accept_callers(listener, callers);
    }
  }

  // Returns whether the system had no room for one more.
  bool accept_callers(int listener, std::vector<Caller>& callers) {
    for (int i = 0; i < kMostAtOnce; ++i) {
      Arrival arrival = accept_from(listener);
      if (!arrival.socket) return arrival.no_room;
      Caller caller;
      caller.host = host_of(arrival.from);
      caller.socket = std::move(arrival.socket);
      listen_to(caller);
      if (!caller.socket) continue;
      if (const auto index = one_to_close(callers, caller.host, places_)) {
        drop(callers[*index]);
        callers.erase(callers.begin() + static_cast<std::ptrdiff_t>(*index));
      }
      callers.push_back(std::move(caller));
    }
    return false;
  }

  std::vector<int> missing() const {
    std::vector<int> ranks;
    for (int rank = options_.rank + 1; rank < options_.workers; ++rank)
      if (!std::ranges::all_of(connections_, [&](const auto& channel) { return bool(channel[rank].socket); }))
        ranks.push_back(rank);
    return ranks;
  }

  void listen_to(Caller& caller) {
    const ssize_t count = ::recv(caller.socket.get(), reinterpret_cast<char*>(&caller.hello) + caller.read,
                                 sizeof(Hello) - caller.read, MSG_DONTWAIT);
    if (count < 0 && errno == EAGAIN) return;
    if (count <= 0) return drop(caller);
    caller.read += static_cast<std::size_t>(count);
    caller.has_spoken = true;
    if (caller.read < sizeof(Hello)) return;
    const Hello& hello = caller.hello;
    if (hello.from <= options_.rank || !is_known(hello, hello.from, hello.channel)) return drop(caller);
    Hello answer = hello_to(hello.from, hello.channel);
    answer.reads = can_read(caller.socket.get(), hello) ? 1 : 0;
    const Deadline deadline = Deadline::after(kHelloWait);
    const bool answered = write_all(caller.socket.get(), &answer, sizeof answer, deadline);
    std::uint8_t both_read = 0;
    if (!answered || !read_all(caller.socket.get(), &both_read, 1, deadline)) return drop(caller);
    keep({std::move(caller.socket), card_of(hello.from).name, both_read != 0 ? static_cast<pid_t>(hello.process) : 0},
         hello);
  }

  // Whether a worker of this job sent it, and did not send it before.
  bool is_known(const Hello& hello, int rank, int channel) const {
    return hello.magic == kMagic && hello.token == own_.token && hello.from == rank && rank < options_.workers &&
           hello.to == options_.rank && hello.channel == channel && channel >= 0 && channel < options_.channels &&
           !connections_[channel][rank].socket;
  }

  void drop(Caller& caller) {
    closed_->add(caller.host);
    caller.socket.close();
  }

  void keep(Connection connection, const Hello& hello) {
    const int on = 1;
    ::setsockopt(connection.socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    connections_[hello.channel][hello.from] = std::move(connection);
  }

  [[noreturn]] void throw_missing(const std::string& what) const {
    throw DeadlineExceeded(
        errors::kPeerMissing,
        {.what = what,
         .where = str("while the data engines connected, on worker ", options_.rank),
         .help =
             "look at that worker's log, and check that a firewall lets the workers reach each other's data ports"});
  }

  const EngineOptions& options_;
  Card own_{};
  Places places_;
  std::optional<ClosedCount> closed_;
  std::map<int, Card> cards_;
  std::vector<std::vector<Connection>> connections_;
};

}  // namespace

std::vector<std::vector<Connection>> connect_mesh(const EngineOptions& options) { return Mesh(options).connect(); }

}  // namespace lockstep::engine
