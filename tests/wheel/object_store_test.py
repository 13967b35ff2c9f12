# SPDX-License-Identifier: Apache-2.0
"""push and pull, by the first ckpt on the PATH that can."""

import json
import os
import stat
import unittest
from unittest import mock

import numpy

import fsdp_checkpoint
from cases import Case

STATIC = "echo '{\"problem\": \"object stores want libcurl.so.4: this program is static\"}'; exit 1"


class ObjectStoreTest(Case):
    def program(self, text):
        """A PATH with a program ckpt that is this script of the shell."""
        directory = f"{self.root}/bin{len(os.listdir(self.root))}"
        os.mkdir(directory)
        with open(directory + "/ckpt", "w") as file:
            file.write(f"#!/bin/sh\n{text}\n")
        os.chmod(directory + "/ckpt", stat.S_IRWXU)
        return directory

    def on_path(self, *directories):
        return mock.patch.dict(os.environ, PATH=os.pathsep.join([*directories, "/usr/bin", "/bin"]))

    def test_the_operands_and_options_are_those_of_ckpt_and_a_static_one_is_passed_over(self):
        shows = self.program("printf '{\"words\": \"%s\"}' \"$*\"")
        with self.on_path(self.program(STATIC), shows):
            report = fsdp_checkpoint.push("runs", "s3://b/p", overwrite=True, endpoint_url="http://localhost:1")
            self.assertEqual(report["words"], "push runs s3://b/p --json --force --endpoint_url=http://localhost:1")
            self.assertEqual(fsdp_checkpoint.pull("s3://b/p", "-x")["words"], "pull s3://b/p ./-x --json")

    def test_a_failure_is_an_exception_with_the_text_of_ckpt(self):
        for code, problem, kind in (
            ("ALREADY_EXISTS", "copy exists and is not to be overwritten; --force replaces it", FileExistsError),
            ("NOT_FOUND", "runs does not exist", FileNotFoundError),
            ("PERMISSION_DENIED", "s3://b: access denied", fsdp_checkpoint.CheckpointError),
        ):
            report = json.dumps({"problem": problem, "problems": [problem], "code": code})
            with self.on_path(self.program(f"echo '{report}'; exit 1")):
                with self.assertRaisesRegex(kind, problem.replace("--force", "overwrite=True")) as caught:
                    fsdp_checkpoint.pull("s3://b/p", "copy")
                self.assertEqual(caught.exception.code, code.lower().replace("_", " "))
        with self.on_path(self.program("echo broken >&2; exit 2")), self.assertRaisesRegex(RuntimeError, "broken"):
            fsdp_checkpoint.push("runs", "s3://b/p")

    def test_without_a_ckpt_that_has_libcurl_the_error_says_what_to_do(self):
        static = self.program(STATIC)
        with mock.patch.dict(os.environ, PATH=static), mock.patch("fsdp_checkpoint._program.own", return_value=[]):
            with self.assertRaisesRegex(fsdp_checkpoint.CheckpointError, "expected a ckpt with libcurl") as caught:
                fsdp_checkpoint.push("runs", "s3://b/p")
            self.assertEqual(caught.exception.code, "unimplemented")

    def test_the_ckpt_of_the_package_is_found_without_the_path_and_reaches_for_the_store(self):
        fsdp_checkpoint.save(self.path(), {"model": {"w": numpy.ones(3)}})
        environment = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_REGION": "eu-west-1"}
        with self.on_path(), mock.patch.dict(os.environ, environment):
            with self.assertRaisesRegex(fsdp_checkpoint.CheckpointError, "localhost port 1.*connect to server"):
                fsdp_checkpoint.push(self.path(), "s3://bucket/prefix", endpoint_url="http://localhost:1")


if __name__ == "__main__":
    unittest.main()
