#pragma once

/* The boundary to Gloo's ring, which is a plugin: LibTorch exports its own, different Gloo symbols, so that code which
   uses Gloo must be loaded apart from it (ring.h does that). Plain C: no exception, no C++ type and no memory to free
   crosses. A plugin is never unloaded, since its threads may outlive any call. */

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define LOCKSTEP_ENGINE_ABI 4

typedef struct lockstep_ring lockstep_ring;

/* out = a + b, for elements of a lockstep::Dtype. */
typedef void (*lockstep_ring_add)(int32_t dtype, const void* a, const void* b, void* out, size_t elements);

/* What went wrong comes as a text in `error`, which has room for LOCKSTEP_RING_ERROR bytes. */
#define LOCKSTEP_RING_ERROR 512

typedef struct lockstep_engine_api {
  uint32_t abi; /* LOCKSTEP_ENGINE_ABI */
  /* Listens at `address`, where the others reach this worker; gives up if not all are connected after `seconds`. */
  lockstep_ring* (*create)(int32_t rank, int32_t workers, const char* address, double seconds, lockstep_ring_add add,
                           char* error);
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
