"""ResNet-18 as torchvision has it, whose names and initialization networks.py keeps."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from networks import ResNet  # noqa: E402


def resnet18(num_classes=1000):
    return ResNet("resnet18", num_classes)
