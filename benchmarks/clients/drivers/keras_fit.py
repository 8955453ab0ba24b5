"""Keras on torch: compile and fit."""

import os

os.environ["KERAS_BACKEND"] = "torch"

import keras
import numpy

model = keras.Sequential([
    keras.layers.Conv2D(32, 3, activation="relu"), keras.layers.MaxPooling2D(), keras.layers.BatchNormalization(),
    keras.layers.Flatten(), keras.layers.Dropout(0.5), keras.layers.Dense(10, activation="softmax"),
])  # fmt: skip
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
images = numpy.random.rand(256, 28, 28, 1).astype("float32")
model.fit(images, numpy.random.randint(0, 10, 256), batch_size=32, epochs=2, validation_split=0.25)
