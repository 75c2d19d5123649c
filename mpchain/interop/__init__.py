"""Converts weights to and from PyTorch and Hugging Face, under these libraries' names."""

from mpchain.interop.networks import BERT as BERT
from mpchain.interop.networks import GPT2 as GPT2
from mpchain.interop.networks import ResNet as ResNet
from mpchain.interop.rules import Tensor as Tensor
from mpchain.interop.rules import rule as rule
from mpchain.interop.state_dicts import load_state_dict as load_state_dict
from mpchain.interop.state_dicts import state_dict as state_dict
