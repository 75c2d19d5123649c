"""Persistent values of models, on several ranks."""


class Persistent:
    """A persistent value of a link.

    Args:
        link (Link): the link.
        name (str): the attribute that holds the value.
    """

    def __init__(self, link, name):
        self.link, self.name = link, name

    @property
    def value(self):
        """The value: an array, number, string or None."""
        return self.link.__dict__[self.name]

    @value.setter
    def value(self, value):
        self.link.__dict__[self.name] = value


def named_persistents(model):
    """Returns the persistent values of a model, as :class:`Persistent` by path."""
    found, seen = {}, set()
    for path, link in model.namedlinks():
        if id(link) not in seen:  # a shared link has several paths
            seen.add(id(link))
            for name in sorted(link._persistents):
                found[f"{path.rstrip('/')}/{name}"] = Persistent(link, name)
    return found
