#ifndef LOCKSTEP_COMM_ENGINE_ENGINE_ABI_H
#define LOCKSTEP_COMM_ENGINE_ENGINE_ABI_H

/* The boundary to Gloo's ring, which is a plugin: LibTorch exports its own, different Gloo symbols, so that code which
   uses Gloo must be loaded apart from it (ring.h does that). Plain C: no exception, no C++ type and no memory to free
   crosses. A plugin is never unloaded, since its threads may outlive any call. */

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define LOCKSTEP_ENGINE_ABI 3

typedef struct lockstep_ring lockstep_ring;

typedef struct lockstep_ring_options {
  int32_t rank;
  int32_t workers;
  const char* address; /* to listen at, and where the others reach this worker */
  double seconds;      /* give up if not all workers are connected by then */
  /* out = a + b, for elements of a lockstep::Dtype. */
  void (*add)(int32_t dtype, const void* a, const void* b, void* out, size_t elements);
} lockstep_ring_options;

/* What went wrong comes as a text in `error`, which has room for LOCKSTEP_RING_ERROR bytes. */
#define LOCKSTEP_RING_ERROR 512

typedef struct lockstep_engine_api {
  uint32_t abi; /* LOCKSTEP_ENGINE_ABI */
  lockstep_ring* (*create)(const lockstep_ring_options* options, char* error);
  void (*destroy)(lockstep_ring* ring);
  /* Where the others reach this worker, for all of them to know; stays as long as the ring. */
  const void* (*addresses)(const lockstep_ring* ring, size_t* size);
  /* Waits for the connection to a worker, in the order of ranks, with what `addresses` gave there; 0 if it failed. */
  int32_t (*connect)(lockstep_ring* ring, int32_t worker, const void* addresses, size_t size, char* error);
  /* Sums the arrays of all workers in place; 0 if it failed. */
  int32_t (*all_reduce)(lockstep_ring* ring, int32_t dtype, size_t element_bytes, void* data, size_t elements,
                        double seconds, char* error);
} lockstep_engine_api;

/* What a plugin exports. */
const lockstep_engine_api* lockstep_engine_entry(void);

#ifdef __cplusplus
}
#endif

#endif
