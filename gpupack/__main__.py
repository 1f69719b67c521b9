"""`python -m gpupack` is the console command."""

from gpupack.cli import main

if __name__ == "__main__":
    main()
