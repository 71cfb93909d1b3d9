// NVRTC defines size_t itself.
