/* SPDX-License-Identifier: Apache-2.0
 *
 * Checkpoints for programs in C, Fortran, Python and other languages that can call C: libfsdp_checkpoint.so.
 *
 *   fsdp_reader* reader = NULL;
 *   if (fsdp_reader_open("checkpoints", NULL, &reader) != FSDP_OK) die(fsdp_error_message());
 *   fsdp_read read = {.tensor = fsdp_reader_find(reader, "model/wte.weight"), .begin = 0, .end = 4096,
 *                     .dtype = FSDP_FLOAT32, .out = weights};
 *   if (fsdp_reader_read(reader, &read, 1, 4) != FSDP_OK) die(fsdp_error_message());
 *   fsdp_reader_close(reader);
 *
 * Errors: a function that can fail returns an fsdp_code. fsdp_error_message() returns the text of the calling thread's
 * last failure: the problem, with tensor, file and byte range if they are known.
 *
 * Threads: different threads may use different handles at the same time. For one handle, see its functions.
 *
 * Names: "model/NAME", "optim/state/NAME/STATE", "optim/param_groups" (a text), "extra/NAME". Texts are UTF-8.
 *
 * Structs of options begin with struct_size = sizeof the struct, so that later releases can add members at their end;
 * all other members may be 0, which is the default. NULL for a whole struct is the default too.
 */
#ifndef FSDP_CHECKPOINT_C_API_FSDP_CHECKPOINT_H_
#define FSDP_CHECKPOINT_C_API_FSDP_CHECKPOINT_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Raised when a declaration of this header changes its meaning or is removed; not for additions. A program compares it
 * with fsdp_checkpoint_abi_version() of the library that it runs with. */
#define FSDP_CHECKPOINT_ABI_VERSION 1
int32_t fsdp_checkpoint_abi_version(void);

/* Never renumbered. */
typedef enum fsdp_code {
  FSDP_OK = 0,
  FSDP_CANCELLED = 1,
  FSDP_UNKNOWN = 2,
  FSDP_INVALID_ARGUMENT = 3, /* the caller's fault, or a file that is not a checkpoint */
  FSDP_DEADLINE_EXCEEDED = 4,
  FSDP_NOT_FOUND = 5,
  FSDP_ALREADY_EXISTS = 6,
  FSDP_PERMISSION_DENIED = 7,
  FSDP_RESOURCE_EXHAUSTED = 8,
  FSDP_FAILED_PRECONDITION = 9, /* wrong state, or ranks disagree */
  FSDP_ABORTED = 10,
  FSDP_OUT_OF_RANGE = 11,
  FSDP_UNIMPLEMENTED = 12,
  FSDP_INTERNAL = 13,
  FSDP_UNAVAILABLE = 14, /* trying again may help */
  FSDP_DATA_LOSS = 15    /* bytes differ from the written ones */
} fsdp_code;

/* The text of this thread's last failure, or "". Valid until this thread's next call that fails. */
const char* fsdp_error_message(void);

/* Element types, by PyTorch's names. Never renumbered. */
typedef enum fsdp_dtype {
  FSDP_FLOAT64 = 0,
  FSDP_FLOAT32 = 1,
  FSDP_BFLOAT16 = 2,
  FSDP_FLOAT16 = 3,
  FSDP_FLOAT8_E4M3FN = 4,
  FSDP_FLOAT8_E5M2 = 5,
  FSDP_INT64 = 6,
  FSDP_INT32 = 7,
  FSDP_INT16 = 8,
  FSDP_INT8 = 9,
  FSDP_UINT64 = 10,
  FSDP_UINT32 = 11,
  FSDP_UINT16 = 12,
  FSDP_UINT8 = 13,
  FSDP_BOOL = 14,
  FSDP_COMPLEX32 = 15,
  FSDP_COMPLEX64 = 16,
  FSDP_COMPLEX128 = 17,
  FSDP_FLOAT8_E4M3FNUZ = 18,
  FSDP_FLOAT8_E5M2FNUZ = 19,
  FSDP_FLOAT8_E8M0FNU = 20,
  FSDP_FLOAT4_E2M1FN_X2 = 21 /* an element is a byte of two numbers; converted to no other dtype */
} fsdp_dtype;

/* Bytes of one element; 0 for a number that is not an fsdp_dtype. */
int64_t fsdp_dtype_size(int32_t dtype);
/* "float32", "bfloat16", ...; NULL for a number that is not an fsdp_dtype. Static. */
const char* fsdp_dtype_name(int32_t dtype);

/* Frees a string that a function of this header returned through a char**; NULL is allowed. */
void fsdp_free(char* string);

/* ------------------------------------------------------------------------------------------------------- reading */

typedef struct fsdp_reader fsdp_reader;

typedef struct fsdp_open_options {
  size_t struct_size;
  int32_t no_verify;  /* 1: do not compare digests */
  int32_t model_only; /* 1: leave out the optimizer of a torch file or DCP directory */
  int32_t skip_links; /* 1: open an HDF5 file even if some links are not followed */
  const char* map;    /* branches of the dict in a torch file or DCP directory, as of ckpt --map: FROM=ROLE, one per
                       * line; NULL: as their structure tells */
} fsdp_open_options;

typedef struct fsdp_tensor {
  const char* name;    /* the reader's */
  int32_t dtype;       /* fsdp_dtype */
  int32_t ndim;        /* 0 for a scalar */
  const int64_t* dims; /* the reader's */
  int64_t numel;
} fsdp_tensor;

/* Elements [begin, end), row-major, of tensor number `tensor`, as `dtype` to `out`, which the caller owns and which has
 * (end - begin) * fsdp_dtype_size(dtype) bytes. */
typedef struct fsdp_read {
  int64_t tensor;
  int64_t begin;
  int64_t end;
  int32_t dtype;
  void* out;
} fsdp_read;

/* Opens `path`: a checkpoint of ours, a directory of them (its newest that verifies), safetensors, a Hugging Face
 * directory, a file of torch.save, a DCP directory, or an HDF5 file. Reads only metadata. On FSDP_OK the caller owns
 * *reader and closes it. FSDP_UNIMPLEMENTED for a name with a NUL or bytes that are not UTF-8. */
int32_t fsdp_reader_open(const char* path, const fsdp_open_options* options, fsdp_reader** reader);
/* Frees a reader and all strings and dims that it owns. No other call may use it meanwhile. NULL is allowed. */
void fsdp_reader_close(fsdp_reader* reader);

/* The following return immediately and never fail; any number of threads may call them at the same time. The reader
 * owns the strings. For NULL they return "", -1, 1 and 0. */
const char* fsdp_reader_path(const fsdp_reader* reader); /* what was opened: of a directory of checkpoints, the step */
const char* fsdp_reader_format(const fsdp_reader* reader); /* "hdf5", "safetensors", ... */
int64_t fsdp_reader_step(const fsdp_reader* reader);       /* -1: not recorded */
int32_t fsdp_reader_world_size(const fsdp_reader* reader); /* 1: not recorded */
int64_t fsdp_reader_tensor_count(const fsdp_reader* reader);
int64_t fsdp_reader_find(const fsdp_reader* reader,
                         const char* name); /* a tensor's number, also for an alias; -1: not found */
int64_t fsdp_reader_text_count(const fsdp_reader* reader);
int64_t fsdp_reader_alias_count(const fsdp_reader* reader);

/* The entry number `index`, from 0; FSDP_OUT_OF_RANGE otherwise. For any number of threads at the same time. */
int32_t fsdp_reader_tensor(const fsdp_reader* reader, int64_t index, fsdp_tensor* tensor);
int32_t fsdp_reader_text(const fsdp_reader* reader, int64_t index, const char** name, const char** text,
                         int64_t* bytes);
/* `alias` is another name of the parameter `name`; both without "model/". */
int32_t fsdp_reader_alias(const fsdp_reader* reader, int64_t index, const char** alias, const char** name);

/* What the checkpoint holds, as a text that is equal for copies of it and differs for others: ranks that open files by
 * themselves compare it before they read. Of ours: save and digest of the manifest; of others: a digest of the files,
 * which reads at most 64 MiB of them and their ends. `identity` is for fsdp_free. */
int32_t fsdp_reader_identity(const fsdp_reader* reader, char** identity);

/* Sentences about how the file was read, one per line: which branches of a torch file or DCP directory became model and
 * optimizer, what was guessed, renamed or left out. "" if there is nothing to say. `notes` is for fsdp_free. */
int32_t fsdp_reader_notes(const fsdp_reader* reader, char** notes);

/* What the run recorded about itself, as of fsdp_state_set_attributes; "{}" if nothing is recorded. `json` is for
 * fsdp_free. */
int32_t fsdp_reader_attributes(const fsdp_reader* reader, char** json);

/* Performs all `reads` on `threads` threads (0: 4), each block once, verified if the format has digests. Blocks until
 * all are done; after a failure the contents of the `out`s are unspecified. For any number of threads at the same time.
 */
int32_t fsdp_reader_read(const fsdp_reader* reader, const fsdp_read* reads, int64_t count, int32_t threads);

/* -------------------------------------------------------------------------------------------------------- writing */

/* Never renumbered. */
typedef enum fsdp_kind { FSDP_FULL = 0, FSDP_LOCAL = 1, FSDP_SHARDED = 2 } fsdp_kind;

/* The state that one rank saves: names, and elements in the caller's memory. Used by one thread at a time. */
typedef struct fsdp_state fsdp_state;

/* Elements [begin, end), row-major, of a whole tensor, at `data`. */
typedef struct fsdp_shard {
  int64_t begin;
  int64_t end;
  const void* data;
} fsdp_shard;

int32_t fsdp_state_create(int32_t kind, fsdp_state** state);
void fsdp_state_free(fsdp_state* state);

/* Adds a tensor of that name, with this rank's shards: sorted, disjoint, not empty; a rank may have no shard. At most
 * 32 dimensions. The shards of all ranks cover it once. FSDP_FULL: one shard with all elements, on rank 0. Strings and
 * dims are copied; the caller owns the memory of the shards and must not change it until the state has been saved. */
int32_t fsdp_state_add_tensor(fsdp_state* state, const char* name, int32_t dtype, int32_t ndim, const int64_t* dims,
                              const fsdp_shard* shards, int64_t shard_count);
int32_t fsdp_state_add_text(fsdp_state* state, const char* name, const char* text, int64_t bytes);
int32_t fsdp_state_add_alias(fsdp_state* state, const char* alias, const char* name);
/* Sets facts about the run, such as its config; a second call replaces the facts of the first. `json` is one object
 * whose values are texts, booleans, nulls, 64-bit integers and finite floating-point numbers: {"model.n_head": 4,
 * "options.lr": 0.001}. At most 4096 members, with 1 MiB of names and texts. Equal on all ranks. */
int32_t fsdp_state_set_attributes(fsdp_state* state, const char* json);
/* FSDP_LOCAL: the layout of a unit's flat parameter of `unsharded_numel` elements: parameter fqns[i], named without
 * "model/", has numels[i] elements from offsets[i]. Sorted by offset and disjoint; `count` of each. */
int32_t fsdp_state_add_unit(fsdp_state* state, const char* name, int64_t unsharded_numel, int64_t count,
                            const char* const* fqns, const int64_t* offsets, const int64_t* numels);

/* Takes the blob of rank `rank`; the bytes are copied. */
typedef void (*fsdp_blob_sink)(void* sink, int32_t rank, const void* blob, int64_t bytes);

/* The ranks that save together. `gather` gives every rank's blob to every rank, like MPI_Allgatherv: it blocks until
 * it has called take(sink, r, ...) once for each rank r, and returns 0; any other value is a failure
 * (FSDP_UNAVAILABLE). All ranks call it equally often. fsdp_save calls it from the thread that calls fsdp_save; an
 * fsdp_saver also from its own thread, one call at a time, so its `gather` must not interfere with other communication
 * of the program (with MPI: a separate communicator, and MPI_THREAD_MULTIPLE). world_size 1 needs no gather. */
typedef struct fsdp_group {
  size_t struct_size;
  int32_t rank;
  int32_t world_size;
  int32_t (*gather)(void* context, const void* blob, int64_t bytes, fsdp_blob_sink take, void* sink);
  void* context;
} fsdp_group;

typedef struct fsdp_save_options {
  size_t struct_size;
  int32_t overwrite;  /* 1: replace an existing step; otherwise FSDP_ALREADY_EXISTS */
  int32_t parity;     /* files that can be lost and rebuilt (ckpt repair); 0 for FSDP_FULL */
  int32_t io_threads; /* of each rank; 0: 2 */
  const char* name;   /* of the checkpoint in ROOT: one part of a path, at most 200 bytes; NULL: step-NNNNNNNN */
  const char* base;   /* the path of an earlier checkpoint on the same file system, or NULL: what FSDP_SHARDED and
                       * FSDP_LOCAL have in common with it is linked, not written again */
} fsdp_save_options;

/* Saves as ROOT/step-NNNNNNNN or ROOT/name, complete or not at all. Every rank calls it with its own part. `group`
 * NULL: one rank. Blocks until the checkpoint is durable; if a rank fails, every rank gets that rank's error. `path`
 * may be NULL; otherwise it becomes the checkpoint's path, for fsdp_free. */
int32_t fsdp_save(const fsdp_state* state, const char* root, int64_t step, const fsdp_group* group,
                  const fsdp_save_options* options, char** path);

/* Saves in the background, one checkpoint at a time, on threads with a niceness of 14 (nice(1)) until a caller waits.
 * Used by one thread of a rank. */
typedef struct fsdp_saver fsdp_saver;

/* Collective. The saver keeps `group->context` and calls `group->gather` until it is freed. */
int32_t fsdp_saver_create(const char* root, const fsdp_group* group, const fsdp_save_options* options,
                          fsdp_saver** saver);
/* Waits for the previous save, copies `state`, and returns: afterwards the caller's memory may change, and `state` may
 * be freed. Collective. If the previous save failed, returns its failure and starts no save. */
int32_t fsdp_saver_save(fsdp_saver* saver, const fsdp_state* state, int64_t step);
/* Blocks until no save is in progress. `path` (or NULL) becomes the path of the last checkpoint, or "", for fsdp_free.
 */
int32_t fsdp_saver_wait(fsdp_saver* saver, char** path);
/* Waits like fsdp_saver_wait, discards the result, and frees the saver. NULL is allowed. */
void fsdp_saver_free(fsdp_saver* saver);

/* ---------------------------------------------------------------------------------------------- whole checkpoints */

/* These block, use their own threads, and may be called by any number of threads at the same time. */

typedef struct fsdp_convert_options {
  size_t struct_size;
  /* "hdf5", "safetensors", "torch", "dcp", "npz", "gguf", "deepspeed" or "megatron"; NULL: by its suffix */
  const char* to;
  int32_t kind;        /* fsdp_kind of hdf5 */
  int32_t world_size;  /* of FSDP_LOCAL and FSDP_SHARDED; 0: the source's */
  int32_t parity;      /* of FSDP_LOCAL and FSDP_SHARDED */
  int32_t dtype_given; /* 1: convert the model's floating-point tensors to `dtype`; 0: keep */
  int32_t dtype;
  int32_t model_only;
  int32_t force;   /* 1: replace the destination */
  const char* map; /* as of fsdp_open_options */
} fsdp_convert_options;

/* `report` (or NULL): sentences about values that the target cannot hold, one per line, for fsdp_free. */
int32_t fsdp_convert(const char* source, const char* destination, const fsdp_convert_options* options, char** report);

typedef struct fsdp_verify_options {
  size_t struct_size;
  int32_t threads; /* 0: 2 */
  const char* map; /* as of fsdp_open_options */
} fsdp_verify_options;

/* Reads everything. FSDP_DATA_LOSS: a file is damaged. Another code: no damage was found, but this process cannot read
 * all of it. With either, `report` (or NULL) has a sentence for each problem, one per line, otherwise "", for
 * fsdp_free. */
int32_t fsdp_verify(const char* path, const fsdp_verify_options* options, char** report);

typedef struct fsdp_diff_options {
  size_t struct_size;
  double atol; /* |a - b| <= atol + rtol * |b| is equal */
  double rtol;
  int32_t model_only; /* as of fsdp_open_options */
  const char* map;    /* as of fsdp_open_options, for those of the two that are torch files or DCP directories */
} fsdp_diff_options;

/* Compares structure and values. `equal` becomes 1 or 0; `report` (or NULL) lists the differences, one per line, for
 * fsdp_free. A failure means that reading failed, never that the two differ. */
int32_t fsdp_diff(const char* a, const char* b, const fsdp_diff_options* options, int32_t* equal, char** report);

/* Rebuilds lost and damaged files of one checkpoint of ours, from parity and from the rank files' own records; reads
 * all of it. `dry_run` 1: changes nothing. `report` (or NULL) has a sentence for each file that was, or would be,
 * rebuilt, for fsdp_free. FSDP_DATA_LOSS if damage remains: then nothing was changed, and `report` has the problems. */
int32_t fsdp_repair(const char* path, int32_t dry_run, char** report);

/* The committed steps of the directory `root`, oldest first, not verified: lines "STEP NAME", for fsdp_free; "" if
 * there are none. */
int32_t fsdp_steps(const char* root, char** steps);

/* The path of the newest step of `root` that verifies, for fsdp_free; reads all of it. FSDP_NOT_FOUND, with all
 * reasons, if no step verifies. */
int32_t fsdp_latest(const char* root, char** path);

typedef struct fsdp_prune_options {
  size_t struct_size;
  int32_t keep_last;  /* the newest steps that stay; 0: 1 */
  int64_t keep_every; /* steps that are a multiple of it stay; 0: no such steps */
  int32_t dry_run;    /* 1: deletes nothing */
  int32_t no_verify;  /* 1: a step is good if its files are there with their sizes; nothing is read */
  const char* keep;   /* names of further steps that stay, one per line; NULL: none */
} fsdp_prune_options;

/* Deletes the other steps of `root`, and what crashed saves left. The newest step that verifies always stays; if none
 * does, FSDP_DATA_LOSS, and nothing is deleted. `deleted` (or NULL): the names of the steps, one per line, for
 * fsdp_free.
 */
int32_t fsdp_prune(const char* root, const fsdp_prune_options* options, char** deleted);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* FSDP_CHECKPOINT_C_API_FSDP_CHECKPOINT_H_ */
