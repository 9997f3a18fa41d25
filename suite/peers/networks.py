"""ResNets with torchvision's parameter names: 6n+2 (He et al. 2015, section 4.2) and 18 to 152.

ResNet-50 and deeper have the stride on the 3x3 convolution, as torchvision's do (v1.5).
"""
import torch.nn as nn
import torch.nn.functional as F

CIFAR = ("resnet8", "resnet20", "resnet32", "resnet44", "resnet56", "resnet110")
LARGE = {"resnet18": (2, 2, 2, 2), "resnet34": (3, 4, 6, 3), "resnet50": (3, 4, 6, 3),
         "resnet101": (3, 4, 23, 3), "resnet152": (3, 8, 36, 3)}


class CifarBlock(nn.Module):
    """Two 3x3 convolutions; option A shortcut: every other pixel, new channels zero."""

    def __init__(self, planes_in, planes, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(planes_in, planes, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.stride, self.grow = stride, planes - planes_in
        self.relu1, self.relu2 = nn.ReLU(inplace=True), nn.ReLU(inplace=True)

    def forward(self, x):
        y = self.bn2(self.conv2(self.relu1(self.bn1(self.conv1(x)))))
        if self.grow or self.stride != 1:
            x = F.pad(x[:, :, ::self.stride, ::self.stride], (0, 0, 0, 0, 0, self.grow))
        return self.relu2(x + y)


class CifarResNet(nn.Module):
    def __init__(self, depth, num_classes):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.relu = nn.ReLU(inplace=True)
        planes_in = 16
        for stage, planes in enumerate((16, 32, 64)):
            blocks = []
            for i in range((depth - 2) // 6):
                blocks.append(CifarBlock(planes_in, planes, 2 if stage and not i else 1))
                planes_in = planes
            setattr(self, f"layer{stage + 1}", nn.Sequential(*blocks))
        self.fc = nn.Linear(64, num_classes)

    def forward(self, x):
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.fc(x.mean((2, 3)))


class Block(nn.Module):
    """Basic (two 3x3) or bottleneck (1x1, 3x3 with the stride, 1x1)."""

    def __init__(self, planes_in, planes, stride, bottleneck):
        super().__init__()
        out = planes * (4 if bottleneck else 1)
        shapes = ((planes_in, planes, 1, 1), (planes, planes, 3, stride), (planes, out, 1, 1)) \
            if bottleneck else ((planes_in, planes, 3, stride), (planes, out, 3, 1))
        self.count = len(shapes)
        for i, (a, b, kernel, step) in enumerate(shapes, 1):
            setattr(self, f"conv{i}", nn.Conv2d(a, b, kernel, step, kernel // 2, bias=False))
            setattr(self, f"bn{i}", nn.BatchNorm2d(b))
        self.relus = [nn.ReLU(inplace=True) for _ in shapes]
        for i, relu in enumerate(self.relus):
            self.add_module(f"relu{i}", relu)
        self.downsample = None
        if stride != 1 or planes_in != out:
            self.downsample = nn.Sequential(nn.Conv2d(planes_in, out, 1, stride, bias=False),
                                            nn.BatchNorm2d(out))

    def forward(self, x):
        y = x
        for i in range(1, self.count + 1):
            y = getattr(self, f"bn{i}")(getattr(self, f"conv{i}")(y))
            if i < self.count:
                y = self.relus[i - 1](y)
        return self.relus[-1](y + (x if self.downsample is None else self.downsample(x)))


class ResNet(nn.Module):
    def __init__(self, arch, num_classes):
        super().__init__()
        bottleneck = arch not in ("resnet18", "resnet34")
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu, self.maxpool = nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
        planes_in = 64
        for stage, count in enumerate(LARGE[arch]):
            planes, blocks = 64 << stage, []
            for i in range(count):
                blocks.append(Block(planes_in, planes, 2 if stage and not i else 1, bottleneck))
                planes_in = planes * (4 if bottleneck else 1)
            setattr(self, f"layer{stage + 1}", nn.Sequential(*blocks))
        self.fc = nn.Linear(planes_in, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x):
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(x.mean((2, 3)))


def build(arch, num_classes):
    if arch in CIFAR:
        return CifarResNet(int(arch[6:]), num_classes)
    return ResNet(arch, num_classes)


def known(arch):
    return arch in CIFAR or arch in LARGE
