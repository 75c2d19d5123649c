"""Classifiers, and well-known networks."""

from mpchain.links.model.classifier import Classifier as Classifier
