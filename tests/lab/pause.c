/* Process 1 of a pod's sandbox: holds the pod's namespaces, reaps orphans
 * where containers share a process namespace, ends when it is told to.
 * Static and tiny, since every pod has one. */
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static void end(int signal) {
    (void)signal;
    _exit(0);
}

int main(void) {
    sigset_t child;
    struct sigaction action = {.sa_handler = end};
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    sigprocmask(SIG_BLOCK, &child, NULL);
    for (;;) {
        int which;
        while (waitpid(-1, NULL, WNOHANG) > 0) {
        }
        sigwait(&child, &which);
    }
}
