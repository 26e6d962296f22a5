def autodiscover() -> None:
    pass
