# SPDX-License-Identifier: Apache-2.0
"""Keras 3: fresh .keras and .weights.h5 files are read."""

import unittest

import keras
import numpy

import trainers


class KerasTest(trainers.TrainerCase):
    def setUp(self):
        super().setUp()
        keras.utils.set_random_seed(6)

    def model(self):
        inputs = keras.Input((9, 5))
        x = keras.layers.Conv1D(7, 3, padding="same", name="convolution")(inputs)
        x = keras.layers.BatchNormalization()(x)
        x = keras.layers.MultiHeadAttention(2, 3, name="attention")(x, x)
        x = keras.layers.Dense(11, activation="relu")(x)
        x = keras.layers.GlobalAveragePooling1D()(x)
        return keras.Model(inputs, keras.layers.Dense(3, use_bias=False, name="head")(x))

    def arrays(self, values):
        return sorted((numpy.asarray(v).shape, numpy.ascontiguousarray(v).tobytes()) for v in values)

    def check(self, path, model):
        """Every variable of the model is there, with its own values."""
        self.assertEqual(self.inspect(path)["format"], "keras")
        read = self.read(path)
        found = [tensor.numpy() for tensor in read.get("model", read).values()]
        self.assertEqual(self.arrays(found), self.arrays(keras.ops.convert_to_numpy(v) for v in model.weights))
        return read

    def test_weights_and_archives(self):
        model = self.model()
        for name in ("fresh.weights.h5", "fresh.keras"):
            with self.subTest(name=name):
                path = self.path(name)
                model.save_weights(path) if name.endswith(".h5") else model.save(path)
                self.check(path, model)

    def test_a_trained_model_with_its_optimizer(self):
        model = self.model()
        model.compile(optimizer=keras.optimizers.AdamW(1e-3), loss="mse")
        random = numpy.random.default_rng(6)
        inputs = random.standard_normal((8, 9, 5)).astype(numpy.float32)
        model.fit(inputs, random.standard_normal((8, 3)).astype(numpy.float32), epochs=2, verbose=0)
        path = self.path("trained.keras")
        model.save(path)
        read = self.check(path, model)
        moments = [
            tensor.numpy()
            for state in read["optim"]["state"].values()
            for name, tensor in state.items()
            if tensor.dim() > 0
        ]
        expected = [keras.ops.convert_to_numpy(v) for v in model.optimizer.variables[2:]]
        self.assertEqual(self.arrays(moments), self.arrays(expected))


if __name__ == "__main__":
    unittest.main()
