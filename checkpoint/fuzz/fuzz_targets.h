// SPDX-License-Identifier: Apache-2.0
//
// The readers of untrusted files, as functions of bytes: each returns true if its input could be read, and CHECK-fails
// if the result violates a guarantee of the reader's header. For any bytes they return quickly and use bounded memory.
// fuzzer.cc makes a libFuzzer program of each (--config=fuzz); fuzz_test.cc runs them on mutations of the corpus, with
// any compiler.
#ifndef FSDP_CHECKPOINT_FUZZ_FUZZ_TARGETS_H_
#define FSDP_CHECKPOINT_FUZZ_FUZZ_TARGETS_H_

#include <string_view>

namespace fsdp {

// manifest.json. It is read unchanged, and again with a corrected seal, since otherwise code after the comparison of
// digests would never be reached.
bool FuzzManifest(std::string_view bytes);

// The record of a rank file, in the same way.
bool FuzzRecord(std::string_view bytes);

// The header of a safetensors file, for a payload of the length that the header requires.
bool FuzzSafetensorsHeader(std::string_view bytes);

// A file of a directory by HuggingFaceStorageWriter, with the elements of its tensors.
bool FuzzSafetensorsShards(std::string_view bytes);

// model.safetensors.index.json.
bool FuzzHuggingFaceIndex(std::string_view bytes);

// A whole HDF5 file, parsed by the library in a confined process.
bool FuzzHdf5File(std::string_view bytes);

// The text in which that process reports its result: it has parsed a hostile file, so it is not trusted either.
bool FuzzHdf5Listing(std::string_view bytes);

// A pickle, and its tree of tensors and values.
bool FuzzPickle(std::string_view bytes);

// A zip archive that torch.save wrote.
bool FuzzTorchArchive(std::string_view bytes);

// An archive of NumPy's arrays, and the elements of each of them.
bool FuzzNpz(std::string_view bytes);

// A model file and an optimizer file of DeepSpeed, of one rank, and the elements of their tensors.
bool FuzzDeepSpeed(std::string_view bytes);

// A GGUF file, and the elements of each of its tensors.
bool FuzzGguf(std::string_view bytes);

// A manifest or a node of an OCDBT database, as it is and with the right CRC.
bool FuzzOcdbt(std::string_view bytes);

// The metadata of a zarr array, a NUL, and its first chunk, whose elements are read.
bool FuzzZarr(std::string_view bytes);

// The .metadata of a checkpoint of Megatron-Core, and the names and places of its tensors.
bool FuzzMegatron(std::string_view bytes);

// The adapter_config.json of PEFT, a NUL, and the names and shapes of an adapter's tensors: what a merge would do.
bool FuzzAdapter(std::string_view bytes);

// metadata.pkl of torch_checkpointing and the model's files of two ranks, and the elements of the tensors.
bool FuzzTorchCheckpointing(std::string_view bytes);

// The listing of an HDF5 file of Keras, and the config of its model: the names of its variables.
bool FuzzKeras(std::string_view bytes);

// A file of flax.serialization, and the elements of its arrays.
bool FuzzFlax(std::string_view bytes);

// A model of ONNX, and the elements of its tensors, some of which are in another file.
bool FuzzOnnx(std::string_view bytes);

// The .metadata of a DCP directory.
bool FuzzDcpMetadata(std::string_view bytes);

// The XML of an object store, as a page of a listing below "run/"; and as every other reply.
bool FuzzS3Reply(std::string_view bytes);

// Arguments of fsdp_checkpoint.h's functions and a checkpoint that they read, verify and convert.
bool FuzzCApi(std::string_view bytes);

// A program of calls of fsdp_checkpoint.h that fill a state and save it.
bool FuzzCApiSave(std::string_view bytes);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FUZZ_FUZZ_TARGETS_H_
