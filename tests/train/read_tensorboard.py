#!/usr/bin/env python3
"""Prints the scalars of a folder as TensorBoard reads them: {tag: [[step, value], ...]} as JSON."""
import json
import sys

from tensorboard.backend.event_processing import event_accumulator

accumulator = event_accumulator.EventAccumulator(sys.argv[1], size_guidance={event_accumulator.SCALARS: 0})
accumulator.Reload()
tags = accumulator.Tags()["scalars"]
print(json.dumps({tag: [[event.step, event.value] for event in accumulator.Scalars(tag)] for tag in tags}))
