#ifndef LOCKSTEP_COMM_ENGINE_ENGINE_ABI_H
#define LOCKSTEP_COMM_ENGINE_ENGINE_ABI_H

/* The boundary between Lockstep and a data engine, which is a plugin: LibTorch exports its own, different Gloo symbols,
   so that an engine which uses Gloo must be loaded apart from it (engine.h does that). Plain C: no exception, no
   C++ type and no memory to free crosses. An engine is never unloaded, since its threads may outlive any call. */

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define LOCKSTEP_ENGINE_ABI 1

/* How a call ended. The texts are the parts of a lockstep::Error, cut to fit and always ended by a zero. */
typedef struct lockstep_status {
  int32_t code;   /* 0: well; else 1 + lockstep::Code */
  int32_t number; /* the error's number, 104 for L104 */
  int32_t peer;   /* the worker to blame, or -1 */
  char what[512];
  char where[512];
  char seen[1536];
  char help[512];
} lockstep_status;

/* Where workers leave each other their addresses. Called only inside `create`, from its thread. Both return 0 or fill in
   the status. `get` waits until the key is there. */
typedef struct lockstep_store {
  void* self;
  int32_t (*set)(void* self, const char* key, const void* data, size_t size, lockstep_status* status);
  int32_t (*get)(void* self, const char* key, double seconds, void* data, size_t capacity, size_t* size,
                 lockstep_status* status);
} lockstep_store;

typedef struct lockstep_engine_options {
  uint32_t abi;           /* LOCKSTEP_ENGINE_ABI */
  int32_t rank;           /* this worker */
  int32_t workers;        /* how many */
  int32_t replicas;       /* of each worker */
  int32_t channels;       /* independent sequences of collectives */
  int32_t port;           /* to listen at; 0: a free one */
  int32_t ring;           /* not 0: also connect Gloo's own ring */
  const char* address;    /* to listen at, and where the others reach this worker */
  const char* prefix;     /* of this engine's keys in the store */
  double connect_seconds; /* give up if not all workers are connected by then */
  double call_seconds;    /* time limit of a collective that names none; 0: none */
  uint64_t chunk_bytes;   /* large arrays travel in chunks of this size */
  uint64_t inline_bytes;  /* arrays up to this size travel within the frame that announces them */
  lockstep_store store;
} lockstep_engine_options;

/* One collective of one worker. Everything but the arrays may be gone when `submit` returns; the arrays belong to the
   engine until `wait` has returned. */
typedef struct lockstep_collective {
  int32_t kind;           /* lockstep::CollectiveKind */
  int32_t dtype;          /* lockstep::Dtype */
  int32_t reduce;         /* lockstep::ReduceOp */
  int32_t implementation; /* lockstep::Implementation */
  int32_t root;
  int32_t input_count;
  int32_t output_count;
  int32_t shape_size;
  uint64_t elements;
  const void* const* inputs;
  void* const* outputs;
  const int64_t* shape;
  const uint64_t* counts; /* one per worker, or null */
  const char* name;
  double seconds; /* time limit, 0: that of the engine */
} lockstep_collective;

typedef struct lockstep_engine lockstep_engine;

/* `submit` returns a ticket, or 0 and a status. Collectives of one channel run in the order of submission. `wait` waits
   at most `seconds` (negative: as long as the collective's own limit), returns 0 or fills in the status, and ends the
   ticket. After the first error every call fails with it. `abort` may be called from any thread. `log` writes the last
   collectives of every channel as text, cut to the capacity, and returns the length of all of it. `destroy` waits a
   moment for what the other workers still have to receive, and never hangs. */
typedef struct lockstep_engine_api {
  uint32_t abi;
  const char* name;
  lockstep_engine* (*create)(const lockstep_engine_options* options, lockstep_status* status);
  void (*destroy)(lockstep_engine* engine);
  uint64_t (*submit)(lockstep_engine* engine, int32_t channel, const lockstep_collective* collective,
                     lockstep_status* status);
  int32_t (*wait)(lockstep_engine* engine, uint64_t ticket, double seconds, lockstep_status* status);
  void (*abort)(lockstep_engine* engine, const lockstep_status* reason);
  size_t (*log)(lockstep_engine* engine, char* text, size_t capacity);
} lockstep_engine_api;

/* What a plugin exports. */
const lockstep_engine_api* lockstep_engine_entry(void);

#ifdef __cplusplus
}
#endif

#endif
