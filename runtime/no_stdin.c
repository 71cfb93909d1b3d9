// What the statically linked JSON library sees as the C library's `stdin` inside libmoe.so (see the Makefile): nothing.
void *moe_no_stdin;
