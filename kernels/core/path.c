#include "path.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "log.h"
#include "text.h"

ls_status ls_path_make_folder(const char *path)
{
    char part[1024];
    ls_text_put(part, sizeof part, "%s", path);
    for (char *slash = strchr(part + 1, '/');; slash = strchr(slash + 1, '/')) {
        if (slash != NULL) {
            *slash = '\0';
        }
        if (mkdir(part, 0777) != 0 && errno != EEXIST) {
            ls_log_error("cannot make the folder %s: %s", part, strerror(errno));
            return LS_ERR_INFRA;
        }
        if (slash == NULL) {
            return LS_OK;
        }
        *slash = '/';
    }
}
