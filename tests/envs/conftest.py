from hypothesis import settings

settings.register_profile("envs", deadline=None)  # a busy machine is no failure
settings.load_profile("envs")
