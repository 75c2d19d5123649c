"""Classifiers, and networks for image classification."""

from mpchain.links.model.classifier import Classifier as Classifier
