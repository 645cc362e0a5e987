#include "lockstep/data/format/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "lockstep/base/descriptor.h"
#include "lockstep/data/format/file_error.h"

namespace lockstep::data {

MappedFile::MappedFile(std::string path) : path_(std::move(path)) {
  // Non-blocking: a pipe, which cannot be mapped, may never get a writer.
  const Descriptor file = open_file("open", path_, O_RDONLY | O_NONBLOCK);
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) throw_file_error("inspect", path_, errno);
  if (S_ISDIR(status.st_mode)) throw_file_error("read", path_, EISDIR);
  if (!S_ISREG(status.st_mode)) throw_file_error("map", path_, ENODEV);
  size_ = static_cast<std::size_t>(status.st_size);
  map(file.get(), MAP_PRIVATE | MAP_NORESERVE);
}

MappedFile::MappedFile(std::string path, std::size_t size) : path_(std::move(path)), size_(size) {
  map(-1, MAP_PRIVATE | MAP_ANONYMOUS);
}

void MappedFile::map(int file, int flags) {
  if (size_ == 0) return;  // an empty file cannot be mapped
  void* address = ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, flags, file, 0);
  if (address == MAP_FAILED) throw_file_error("map", path_, errno);
  memory_ = {static_cast<char*>(address), [address, size = size_](char*) { ::munmap(address, size); }};
}

}  // namespace lockstep::data
