"""Models: what an optimizer minimizes, and networks that are known by name."""

from mpchain.links.model.classifier import Classifier as Classifier
